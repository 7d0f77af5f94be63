"""Pages that are made from verdicts: README's table, and one page a reproduction.

python docs/pages.py                 write them from docs/results/
python docs/pages.py keep RUN...     first take the verdict and the picture of finished runs

mkdocs calls ``on_config`` itself, for the menu.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orderone.experiments.reproduction import NAMES, Verdict, particulars
from orderone.experiments.results import result, verdict_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = ROOT / "docs" / "reproductions"
README = ROOT / "README.md"
BEGIN, END = "<!-- results: made by ./dev docs -->", "<!-- end of results -->"
INTRODUCTION = """Every figure and table of the two papers is one command:
`orderone reproduce NAME --scale smoke` takes seconds, `laptop` minutes on two cores, `paper` is the
exact setting, of which `--dry-run` tells the cost. Below stands what was measured; each line and
each page is made from the verdict of a kept run."""
ROOM = 220
"""Letters of a cell."""
ANSWER = {True: "held", False: "did not hold", None: "cannot be told at this size"}


def keep(path: Path) -> None:
    """The verdict, what it was measured on, and the picture of a finished run."""
    found = result(path)
    described = found.run.description
    kept = asdict(found.verdict) | {
        "versions": {name: described["versions"][name] for name in ("python", "torch")},
        "machine": described["machine"],
        "seed": described["seed"],
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(kept, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{found.verdict.name}.json").write_text(text, encoding="utf-8")
    if found.picture is not None:
        shutil.copyfile(found.picture, RESULTS / f"{found.verdict.name}.svg")


def results() -> list[dict[str, Any]]:
    """What is kept, in the papers' order."""
    paths = [RESULTS / f"{name}.json" for name in NAMES]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def table(kept: list[dict[str, Any]], *, linked: str) -> str:
    """claim | published | measured | verdict | command, a line each."""
    if not kept:
        return "No reproduction has been kept yet; `orderone reproduce --list` tells what there is."
    lines = ["| claim | published | measured | verdict | command |", "|---|---|---|---|---|"]
    for each in kept:
        verdict = verdict_of(each)
        claim = f"[{_cell(verdict.claim)}]({linked}{verdict.name}.md)"
        measured = _cell(brief(verdict.measured))
        if verdict.as_coded is not None:
            measured += f"; *as coded:* {_cell(brief(verdict.as_coded))}"
        published = _cell(brief(verdict.published))
        cells = [claim, published, measured, ANSWER[verdict.held], _command(verdict)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def readme(text: str, kept: list[dict[str, Any]]) -> str:
    """The README with its table made anew."""
    if BEGIN not in text or END not in text:
        sys.exit(f"docs/pages.py: README.md lacks a marker; expected {BEGIN} and {END}; put them")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(kept, linked='docs/reproductions/')}\n\n{END}{after}"


def page(each: dict[str, Any]) -> str:
    """A reproduction: what was found, the picture, how."""
    verdict = verdict_of(each)
    where = each["machine"]["accelerator"] or f"{each['machine']['cores']} cores, no accelerator"
    lines = [
        f"# {verdict.name}",
        f"**{verdict.claim}: {ANSWER[verdict.held]}.**",
        f"- Published: {verdict.published}",
        f"- Measured: {verdict.measured}",
    ]
    if verdict.as_coded is not None:
        lines.append(f"- As the original code computes it: {verdict.as_coded}")
    body = "\n".join([lines[0], "", lines[1], "", *lines[2:], ""])
    if verdict.why:
        body += f"\n{verdict.why}\n"
    if (RESULTS / f"{verdict.name}.svg").exists():
        body += f"\n![{verdict.claim}](../results/{verdict.name}.svg)\n"
    body += "\n| | |\n|---|---|\n"
    body += "".join(f"| {k} | {_cell(v)} |\n" for k, v in particulars(verdict.name).items())
    size = f"{verdict.scale} scale, {verdict.seconds:,.0f} s on {where}, torch"
    body += f"| Measured at | {size} {each['versions']['torch']}, seed {each['seed']} |\n"
    body += f"| Again | {_command(verdict)} |\n"
    body += f"| The paper's own size | `orderone reproduce {verdict.name} --dry-run` |\n"
    return body


def pages(kept: list[dict[str, Any]]) -> dict[str, str]:
    """Text of the index and of every page, by file name."""
    index = f"# Reproductions\n\n{INTRODUCTION}\n\n{table(kept, linked='')}\n"
    return {"index.md": index, **{f"{each['name']}.md": page(each) for each in kept}}


def write() -> None:
    """README's table, the index and every page; pages of verdicts that are gone go too."""
    kept = results()
    README.write_text(readme(README.read_text(encoding="utf-8"), kept), encoding="utf-8")
    PAGES.mkdir(exist_ok=True)
    made = pages(kept)
    for old in PAGES.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")


def on_config(config: Any) -> Any:
    """The menu's entry of every reproduction that has a page."""
    names = [f"reproductions/{each['name']}.md" for each in results()]
    config["nav"].append({"Reproductions": ["reproductions/index.md", *names]})
    return config


def brief(text: str) -> str:
    """The first clauses, as many as a table has room for; the claim's page has all."""
    if len(text) <= ROOM:
        return text
    depth, ends = 0, list[int]()
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and text[place : place + 2] in ("; ", ". ", ", "):
            ends.append(place)
    fitting = [end for end in ends if end <= ROOM] or ends[:1]
    return f"{text[: fitting[-1]]} …" if fitting else text


def _command(verdict: Verdict) -> str:
    return f"`orderone reproduce {verdict.name} --scale {verdict.scale}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"]:
        for run in sys.argv[2:]:
            keep(Path(run))
    write()
