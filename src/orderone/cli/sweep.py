"""``orderone sweep``: a run at every point of a grid over any settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orderone.cli.arguments import counted
from orderone.cli.search import CONFIG_HELP, aligned


def sweep(
    config: Annotated[Path, typer.Argument(help=CONFIG_HELP.format("sweep"))],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a sweep that was killed.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray: spread over a cluster.")] = "local",
    processes: Annotated[int, typer.Option(min=1, help="Processes of the local engine.")] = 1,
    to: Annotated[Path | None, typer.Option(help="Run folder to make, or to resume.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Train at every point of the grid that [sweep] spans; 1 if every trial failed."""
    from orderone.experiments.sweep import grid, sweep_runs, trials_of
    from orderone.experiments.trial_runs import finish, opened, read_tables
    from orderone.experiments.workers import engine_named
    from orderone.report.page import Section, page

    chosen = engine_named(engine)
    settings, tables = read_tables(config)
    over = grid(tables["sweep"])
    trials_of(settings, over, Path())  # refused before a folder is made
    asked = {"run": settings, "sweep": over}
    run = opened("sweep", asked, to=to, resumes=resume, free="sweep")
    with counted("trials", quiet=as_json) as progress:
        swept = sweep_runs(
            settings, over, run.path, engine=chosen, processes=processes, progress=progress
        )
    header, rows = swept.table()
    best = swept.best
    said = ["Every trial failed."]
    if best is not None:
        place = ", ".join(
            f"{key} = {value}" for key, value in zip(over, swept.points[best], strict=True)
        )
        said = [f"Best of {len(rows)}: {place}, validation loss {swept.losses[best]:.4f}."]
    section = Section(heading="Validation loss (nats)", columns=header, rows=rows)
    text = page(title="orderone sweep", found=said, sections=[section])
    finish(run, "done", swept.as_json(), text)
    if as_json:
        typer.echo(json.dumps(swept.as_json()))
    else:
        lines = [*aligned([header, *rows]), *said, f"Page: {run.path / 'report.html'}"]
        typer.echo("\n".join(lines))
    return 0 if best is not None else 1
