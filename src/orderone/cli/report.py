"""``orderone report``: one page about runs, from what their folders hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.")],
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as PDF and SVG.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Run folder to make, or a file ending in .html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw run folders on one page that works offline: verdicts, charts, tables, settings."""
    from orderone.core.files import cannot_write, write_atomically
    from orderone.core.run import RunFolder, new_run_path
    from orderone.report.runs import as_json as rows
    from orderone.report.runs import report as drawn

    made = drawn(runs)
    text = made.html().encode()
    summary = {"runs": rows(made)}
    if to is not None and to.suffix.lower() in (".html", ".htm"):
        page = to
    else:
        config = {"runs": [str(path) for path in runs]}
        path = to or new_run_path(name="report")
        run = RunFolder.create(path, command="report", config=config, seed=None)
        run.finish("done", summary)
        page = run.path / "report.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(page.parent if figures is None else figures, error) from error
    write_atomically(page, text)
    kept = [] if figures is None else made.figures(figures)
    if as_json:
        typer.echo(json.dumps({"page": str(page), **summary, "figures": [str(p) for p in kept]}))
        return
    for each in summary["runs"]:
        typer.echo(f"{each['run']}: orderone {each['command']}, {each['status']}.")
        for sentence in each["found"]:
            typer.echo(f"  {sentence}")
    if kept:
        typer.echo(f"{len(kept)} figures in {figures}")
    typer.echo(f"Page: {page}")
