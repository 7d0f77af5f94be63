"""The report of run folders: verdicts first, then pictures, tables, settings, how to run it again.

Made from ``run.json``, ``records.jsonl`` and ``result.json`` alone, on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from orderone.core.files import write_atomically
from orderone.report.again import again
from orderone.report.charts import save_chart
from orderone.report.differences import settings, table
from orderone.report.page import Found, Section, page
from orderone.report.pictures import pictures
from orderone.report.quantities import ACCOUNTS, Quantity, events, quantities
from orderone.report.told import Told, together, told
from orderone.report.verdicts import cell, facts, sentences, verdict

ROWS = 300
"""Of a table; a page is for reading."""
PICTURES = 20
"""Of a page; what comes after them is in the table."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page about runs, and the parts that it is made of."""

    runs: list[Told]
    found: dict[str, list[str | Found]]
    """By run."""
    sections: list[Section]

    @property
    def title(self) -> str:
        """Of the page."""
        if len(self.runs) == 1:
            run = self.runs[0]
            return f"orderone {run.command}: {run.name}"
        return f"{len(self.runs)} runs side by side"

    def html(self) -> str:
        """The page as text."""
        several = len(self.runs) > 1
        said: list[str | Found] = []
        for name, each in self.found.items():
            said += [_of(name, sentence) if several else sentence for sentence in each]
        return page(title=self.title, found=said, sections=self.sections)

    def figures(self, folder: Path) -> list[Path]:
        """Every chart as PDF and as SVG in ``folder``; their paths."""
        paths: list[Path] = []
        for number, section in enumerate((s for s in self.sections if s.chart is not None), 1):
            stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in section.heading)
            name = "-".join(filter(None, stem.lower().split("-")))[:60] or "figure"
            for ending in (".pdf", ".svg"):
                paths.append(folder / f"{number:02}-{name}{ending}")
                if section.chart is not None:
                    save_chart(section.chart, paths[-1])
        return paths


def report(paths: Sequence[Path]) -> Report:
    """Of the run folders at ``paths``."""
    runs = told(paths)
    records, keys = together(runs)
    found = quantities(records, keys)
    marks = events(records, keys)
    names = [run.name for run in runs]
    told_beside = ACCOUNTS if any(each.name == "accounts" for each in found) else ()
    seen = [each for each in found if each.name not in told_beside]
    drawn = [section for each in seen for section in pictures(each, names, marks)]
    sections = [
        *_side_by_side(runs),
        *_result(runs),
        *drawn[:PICTURES],
        *[section for run in runs for section in _tables(run, several=len(runs) > 1)],
        *_events(marks, several=len(runs) > 1),
        *_every(found, left=max(0, len(drawn) - PICTURES), several=len(runs) > 1),
        *_settings(runs),
        _again(runs),
    ]
    said = {run.name: _said(run, found) for run in runs}
    return Report(runs=runs, found=said, sections=sections)


def write_page(run: Path) -> Path:
    """The report of one run as ``report.html`` in its folder, for commands without a page's own."""
    page_ = run / "report.html"
    write_atomically(page_, report([run]).html().encode())
    return page_


def _said(run: Told, found: list[Quantity]) -> list[str | Found]:
    own = verdict(run)
    said: list[str | Found] = [] if own is None else [own]
    said += sentences(run, found)
    if said:
        return said
    names = ", ".join(quantity.known.heading for quantity in found[:8])
    return [f"{len(run.records):,} records: {names}."]


def _of(name: str, said: str | Found) -> str | Found:
    if isinstance(said, Found):
        return Found(text=f"{name}: {said.text}", held=said.held)
    return f"{name}: {said}"


def _side_by_side(runs: Sequence[Told]) -> list[Section]:
    if len(runs) == 1:
        return []
    keys = dict.fromkeys(key for run in runs for key, _ in facts(run.summary))
    shared = [k for k in keys if sum(k in dict(facts(run.summary)) for run in runs) > 1][:8]
    rows = [
        [
            run.name,
            run.command,
            run.status,
            cell(len(run.records)),
            cell(run.last_step),
            *(dict(facts(run.summary)).get(key, "") for key in shared),
        ]
        for run in runs
    ]
    columns = ["run", "command", "status", "records", "last step", *shared]
    differing, same = table(runs)
    text = f"{same} other settings are the same in all runs."
    return [
        Section(heading="Runs", columns=columns, rows=rows),
        Section(
            heading="Where the configurations differ",
            text=text if differing else f"Nowhere: all {same} settings are the same.",
            columns=["setting", *(run.name for run in runs)],
            rows=differing,
        ),
    ]


def _result(runs: Sequence[Told]) -> list[Section]:
    """The single values of one run's ``result.json``; those of several stand side by side."""
    rows = facts(runs[0].summary) if len(runs) == 1 else []
    columns = ("what", "value")
    return [Section(heading="Result", columns=columns, rows=rows)] if len(rows) > 1 else []


def _tables(run: Told, *, several: bool) -> list[Section]:
    """A table each list of ``result.json``."""
    of = f": {run.name}" if several else ""
    found = {key: _rows(value) for key, value in run.summary.items()}
    return [_table(f"{_words(key)}{of}", rows) for key, rows in found.items() if rows]


def _rows(value: Any) -> list[dict[str, str]]:
    """A list of mappings, or a mapping of mappings, as rows of single values."""
    each: list[tuple[str | None, Any]] = []
    if isinstance(value, list):
        each = [(None, x) for x in cast("list[Any]", value)]
    elif isinstance(value, Mapping):
        each = [(str(k), x) for k, x in cast("Mapping[Any, Any]", value).items()]
    rows: list[dict[str, str]] = []
    for name, row in each:
        if isinstance(row, Mapping):
            cells = _cells(cast("Mapping[str, Any]", row))
            rows.append({"": name, **cells} if name is not None else cells)
    return [row for row in rows if set(row) - {""}]


def _cells(row: Mapping[str, Any], path: str = "") -> dict[str, str]:
    cells: dict[str, str] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            cells |= _cells(cast("Mapping[str, Any]", value), f"{path}{_words(key)} ")
        elif not isinstance(value, list):
            cells[f"{path}{key.replace('_', ' ')}"] = cell(value)
    return cells


def _table(heading: str, rows: list[dict[str, str]]) -> Section:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = f"The first {ROWS} of {len(rows):,} rows." if len(rows) > ROWS else ""
    cells = [[row.get(key, "") for key in columns] for row in rows[:ROWS]]
    return Section(heading=heading, text=text, columns=columns, rows=cells)


def _words(key: str) -> str:
    words = key.replace("_", " ")
    return words[:1].upper() + words[1:]


def _events(marks: pl.DataFrame, *, several: bool) -> list[Section]:
    if marks.is_empty():
        return []
    rows = [
        {"run": row["run"], "step": cell(row["step"]), "event": row["what"]}
        | {"of": cell(row["of"]), "height over the median": cell(row["value"])}
        for row in marks.head(ROWS + 1).to_dicts()
    ]
    if not several:
        rows = [{key: text for key, text in row.items() if key != "run"} for row in rows]
    return [_table("Spikes and shifts", rows)]


def _every(found: Sequence[Quantity], *, left: int, several: bool) -> list[Section]:
    """First, last, least and largest of every series."""
    frames: list[pl.DataFrame] = []
    for quantity in found:
        if quantity.shape == "matrices" or quantity.name == "accounts" or quantity.frame.is_empty():
            continue
        named = quantity.series(runs=False)
        value = pl.col("value")
        told_ = named.group_by("run", "series", maintain_order=True).agg(
            records=pl.len(),
            first=value.first(),
            last=value.last(),
            least=value.min(),
            largest=value.max(),
        )
        frames.append(told_.with_columns(pl.lit(quantity.name).alias("quantity")))
    if not frames:
        return []
    shown = ["quantity", "series", *(["run"] if several else [])]
    shown += ["records", "first", "last", "least", "largest"]
    whole = pl.concat(frames).select(shown)
    text = f"The first {ROWS} of {len(whole):,} rows. " if len(whole) > ROWS else ""
    text += f"{left} more quantities are not drawn." if left else ""
    rows = [[cell(each) for each in row] for row in whole.head(ROWS).iter_rows()]
    return [Section(heading="Every quantity", text=text, columns=shown, rows=rows, folded=True)]


def _settings(runs: Sequence[Told]) -> list[Section]:
    made: list[Section] = []
    for run in runs:
        of = f": {run.name}" if len(runs) > 1 else ""
        rows = list(settings(run).items())
        columns = ("setting", "value")
        made.append(Section(heading=f"Configuration{of}", columns=columns, rows=rows, folded=True))
    return made


def _again(runs: Sequence[Told]) -> Section:
    parts = [f"# {run.name}\n{again(run)}" if len(runs) > 1 else again(run) for run in runs]
    return Section(heading="Run it again", code="\n\n".join(parts))


def as_json(made: Report) -> list[dict[str, Any]]:
    """A row each run, for ``--json``."""
    return [
        {
            "run": str(run.folder.path),
            "command": run.command,
            "status": run.status,
            "records": len(run.records),
            "found": [s.text if isinstance(s, Found) else s for s in made.found[run.name]],
        }
        for run in made.runs
    ]
