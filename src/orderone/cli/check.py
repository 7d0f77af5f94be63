"""``orderone check``: does everything inside a model stay of order one as it widens?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.arguments import counted, numbers
from orderone.cli.plan import MODEL_HELP

if TYPE_CHECKING:
    from orderone.core.run import RunFolder
    from orderone.experiments.coordinates import Coordinates, Line

SHOWN = 12
"""Lines that the terminal shows of each verdict; the page has all."""


def check(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    widths: Annotated[str, typer.Option(help="Widths, with commas between.")] = "64,128,256",
    strategy: Annotated[
        str | None,
        typer.Option(help="neural-tangent (default), hybrid, maximal-update or standard."),
    ] = None,
    s: Annotated[float | None, typer.Option(help="Meta-exponent in [0, 1], for strategy.")] = None,
    steps: Annotated[int, typer.Option(help="AdamW steps.")] = 3,
    seeds: Annotated[int, typer.Option(help="Seeds at each width.")] = 3,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate: 1 with factors, 0.001 under standard, unless given."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples.")] = 4,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Measure sizes and changes at each width; exit code 1 if anything grows."""
    from orderone.core.run import RunFolder, new_run_path, refuse_taken
    from orderone.experiments.coordinates import coordinates
    from orderone.experiments.sources import source

    if to is not None:
        refuse_taken(to)
    chosen = numbers(widths, int, option="--widths")
    found = source(model)
    with counted("models", quiet=as_json) as progress:
        result = coordinates(
            lambda width: found.build(width),
            chosen,
            strategy,
            steps,
            seeds,
            s=s,
            lr=lr,
            batch=batch,
            progress=progress,
        )
    settings = {"model": model, "widths": chosen, "strategy": strategy, "s": s, "steps": steps}
    settings |= {"seeds": seeds, "lr": lr, "batch": batch}
    path = to or new_run_path(name="check")
    run = RunFolder.create(path, command="check", config=settings, seed=0)
    _keep(run, result, title=f"orderone check {model}")
    if as_json:
        typer.echo(json.dumps({"verdict": result.verdict, "lines": list(map(_json, result.lines))}))
    else:
        _print(result, run)
    return 1 if result.growing else 0


def _keep(run: RunFolder, result: Coordinates, *, title: str) -> None:
    """Records, picture and page."""
    from orderone.core.record import Record
    from orderone.experiments.coordinates import described
    from orderone.report.charts import save_chart
    from orderone.report.page import Section, page

    with run.writer() as records:
        for row in result.frame.to_dicts():
            labels = {k: str(row[k]) for k in ("kind", "where", "quantity", "width", "seed")}
            records.write(Record(row["step"], "rms", row["value"], labels))
    chart = result.chart()
    save_chart(chart, run.path / "coordinates.svg")
    picture = Section(
        heading="Sizes by width",
        chart=chart,
        alternative="Root mean square of signals, their changes and gradients against width",
    )
    table = Section(
        heading="Every line",
        columns=("what", "slope", "interval", "expected", "verdict"),
        rows=[_cells(line) for line in result.lines],
    )
    found = [_headline(result), *map(described, result.growing[:SHOWN])]
    text = page(title=title, found=found, sections=[picture, table])
    (run.path / "report.html").write_text(text, encoding="utf-8")
    lines = [_json(line) for line in result.lines]
    run.finish("done", {"verdict": result.verdict, "lines": lines})


def _print(result: Coordinates, run: RunFolder) -> None:
    from orderone.experiments.coordinates import described

    typer.echo(_headline(result))
    order = ("not finite", "grows", "unclear", "decays", "does not move")
    for verdict in (*order, "decays as expected", "order one"):
        lines = [line for line in result.lines if line.verdict == verdict]
        for line in lines[:SHOWN]:
            typer.echo(f"  {described(line)}")
        if len(lines) > SHOWN:
            typer.echo(f"  ... and {len(lines) - SHOWN} more: {verdict}")
    typer.echo(f"Page: {run.path / 'report.html'}")


def _headline(result: Coordinates) -> str:
    widths = ", ".join(map(str, result.widths))
    if not result.growing:
        return f"Holds: under {result.strategy} nothing grows over widths {widths}."
    return (
        f"Does not hold: under {result.strategy} {len(result.growing)} of {len(result.lines)} "
        f"sizes grow over widths {widths}."
    )


def _cells(line: Line) -> list[str]:
    if line.slope is None:
        return [line.what, "", "", "", line.verdict]
    expected = "" if line.expected is None else f"{line.expected:+.2f}"
    interval = f"{line.low:+.2f} to {line.high:+.2f}"
    return [line.what, f"{line.slope:+.2f}", interval, expected, line.verdict]


def _json(line: Line) -> dict[str, Any]:
    return {
        "what": line.what,
        "slope": _finite(line.slope),
        "low": _finite(line.low),
        "high": _finite(line.high),
        "verdict": line.verdict,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN: null, and the verdict says why."""
    return value if value is not None and math.isfinite(value) else None
