"""``orderone search``: the best learning rate and weight decay of a run, on a log2 grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderone.cli.arguments import counted

if TYPE_CHECKING:
    from orderone.experiments.search import Searched

CONFIG_HELP = "A TOML file as for orderone train, with a table [{}]."


def search(
    config: Annotated[Path, typer.Argument(help=CONFIG_HELP.format("search"))],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a search that was killed.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray: spread over a cluster.")] = "local",
    processes: Annotated[int, typer.Option(min=1, help="Processes of the local engine.")] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Points tried together; as many as processes.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Run folder to make, or to resume.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Walk to the best (lr, weight decay) and check its six neighbours; 1 if none was found."""
    from orderone.experiments.search import SearchConfig, require_possible, search_runs
    from orderone.experiments.trial_runs import finish, opened, read_tables
    from orderone.experiments.workers import engine_named
    from orderone.report.page import Section, page
    from orderone.training.config import checked

    chosen = engine_named(engine)
    settings, tables = read_tables(config)
    limits = checked(SearchConfig, tables["search"])
    require_possible(settings, limits)
    asked = {"run": settings, "search": limits.model_dump(mode="json")}
    run = opened("search", asked, to=to, resumes=resume, free="search")
    with counted("trials", quiet=as_json) as progress:
        found = search_runs(
            settings,
            limits,
            run.path,
            engine=chosen,
            processes=processes,
            at_once=at_once,
            progress=progress,
        )
    said = _sentences(found)
    header, rows = found.table()
    failed = [
        [f"{lr:.3g}", f"{decay:.3g}", why]
        for (lr, decay), why in ((found.at(point), why) for point, why in found.failures.items())
    ]
    sections = [Section(heading="Validation loss (nats)", columns=header, rows=rows)]
    if failed:
        columns = ("lr", "weight decay", "why")
        sections.append(Section(heading="Failed", columns=columns, rows=failed))
    text = page(title="orderone search", found=said, sections=sections)
    finish(run, "done", found.as_json(), text)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        lines = [*aligned([header, *rows]), *said, f"Page: {run.path / 'report.html'}"]
        typer.echo("\n".join(lines))
    return 0 if found.verdict in ("optimum", "tie") else 1


def _sentences(found: Searched) -> list[str]:
    from orderone.experiments.trial_runs import mean_and_error

    place = f"lr {found.lr:.6g}, weight decay {found.weight_decay:.6g}"
    opening = {
        "optimum": f"Optimum: {place}; its six neighbours are worse.",
        "tie": f"Best: {place}; no neighbour is better, and some are as good.",
        "budget": f"Best so far: {place}; the trials ended before its neighbours were all tried.",
        "diverged": "Every trial diverged: start from a lower optimizer.lr.",
    }[found.verdict]
    if found.verdict not in ("optimum", "tie"):
        return [opening]
    mean, error = mean_and_error(found.seeds)
    spread = "" if error is None else f" ± {error:.4f}"
    count = len(found.seeds)
    seeds = f"{count} seeds" if count > 1 else "one seed"
    return [opening, f"Validation loss {mean:.4f}{spread} over {seeds}."]


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of a table as lines, columns flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
