"""What a run found, in sentences: its own verdict first, then what its records say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import polars as pl

from orderone.report.page import Found
from orderone.report.quantities import Quantity, spread
from orderone.report.told import Told

SPOKEN = 2
"""Groups of a kind whose sentences a page opens with; its tables have all."""
_ANSWERS: dict[str, bool | None] = {
    "holds": True,
    "held": True,
    "optimum": True,
    "does not hold": False,
    "diverged": False,
    "tie": None,
    "budget": None,
    "unclear": None,
}


def verdict(run: Told) -> Found | None:
    """The run's own: of a reproduction, a check, a search or a transfer; None of other runs."""
    told = run.summary
    if "held" in told and "claim" in told:
        text = f"{told['claim']}. Published: {told.get('published')}. "
        text += f"Measured: {told.get('measured')}"
        held = told["held"] if isinstance(told["held"], bool) else None
        return Found(text=f"{text} ({told.get('scale')} scale).", held=held)
    word = told.get("verdict")
    if isinstance(word, str):
        return Found(text=f"Verdict of orderone {run.command}: {word}.", held=_ANSWERS.get(word))
    return None


def sentences(run: Told, found: list[Quantity]) -> list[str]:
    """What the records of one run say: where its losses and norms began, ended and were least."""
    said: list[str] = []
    if run.result is None:
        where = "" if run.last_step is None else f" The last record is of step {run.last_step:,}."
        said.append(f"The run has not ended, or was killed: it has no result.json.{where}")
    elif run.status != "done":
        said.append(f"The run ended as '{run.status}'.")
    if run.records.is_empty():
        said.append("It kept no records.")
    said += _spoken(run.summary)
    for quantity in found:
        mine = quantity.frame.filter(pl.col("run") == run.name)
        if quantity.shape != "course" or mine.is_empty():
            continue
        if quantity.name == "loss":
            said += _losses(quantity, mine)
        elif quantity.name == "norm":
            said += _norms(quantity, mine)
    lost = _lost(run)
    said += [] if lost is None else [lost]
    if run.torn:
        said.append("The last line of the records was torn by a kill and is left out.")
    return said


def facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The single values of a summary."""
    return [
        (key.replace("_", " "), cell(value))
        for key, value in summary.items()
        if not isinstance(value, dict | list)
    ]


def cell(value: Any) -> str:
    """A value as a table shows it: six digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _spoken(summary: dict[str, Any]) -> list[str]:
    """Sentences that the run itself made, such as the law of a group's growth."""
    said: list[str] = []
    for value in summary.values():
        if not isinstance(value, Mapping):
            continue
        groups = cast("Mapping[Any, Any]", value)
        for name in spread([str(key) for key in groups], SPOKEN):
            of = groups.get(name)
            sentence = (
                cast("Mapping[str, Any]", of).get("sentence") if isinstance(of, Mapping) else None
            )
            if isinstance(sentence, str):
                said.append(f"{name}: {sentence}.")
    return said


def _losses(quantity: Quantity, mine: pl.DataFrame) -> list[str]:
    column = quantity.column("split")
    names = [None] if column is None else mine[column].unique(maintain_order=True).to_list()
    splits: list[str | None] = sorted(names, key=lambda name: str(name) != "validation")
    said: list[str] = []
    for split in splits:
        part = mine if column is None else mine.filter(pl.col(column).eq_missing(pl.lit(split)))
        first, *_, last = [*part.iter_rows(named=True)] if len(part) > 1 else [None, None]
        if first is None or last is None:
            continue
        least = part.row(part["value"].arg_min() or 0, named=True)
        what = "The loss" if split is None else f"The loss ({split})"
        said.append(
            f"{what} went from {first['value']:.4g} at step {first['step']:,} to "
            f"{last['value']:.4g} at step {last['step']:,}; the least, {least['value']:.4g}, was "
            f"at step {least['step']:,}."
        )
    return said


def _norms(quantity: Quantity, mine: pl.DataFrame) -> list[str]:
    column = quantity.column("group")
    whole = mine if column is None else mine.filter(pl.col(column) == "total")
    if len(whole) < 2:
        return []
    first, last = whole.row(0, named=True), whole.row(-1, named=True)
    change = f" (× {last['value'] / first['value']:.4g})" if first["value"] else ""
    return [
        f"‖θ‖ went from {first['value']:.4g} at step {first['step']:,} to {last['value']:.4g} at "
        f"step {last['step']:,}{change}."
    ]


def _lost(run: Told) -> str | None:
    """Of values that are not finite: how many, and the first."""
    bad = run.records.filter(~pl.col("value").is_finite())
    if bad.is_empty():
        return None
    first = bad.row(bad["step"].arg_min() or 0, named=True)
    return (
        f"{len(bad):,} of {len(run.records):,} values are not finite and cannot be drawn; the "
        f"first is '{first['name']}' at step {first['step']:,}."
    )
