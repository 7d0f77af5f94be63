"""``orderone demo``: the tour. Every tool once, on one small network that learns real text."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.arguments import counted

if TYPE_CHECKING:
    from orderone.core.run import RunFolder
    from orderone.experiments.tour.size import Size
    from orderone.experiments.tour.stop import Progress, Stop


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny network, in seconds: does everything work?")
    ] = False,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page, where there is a desktop.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan, check, train, watch and read back one small network: every tool, in minutes."""
    # Here and not above: `orderone --help` need not wait for torch.
    import torch

    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.tour.size import FULL, QUICK

    # More threads than idle cores wait for each other at every operation of so small a model.
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // 2)))
    size = QUICK if quick else FULL
    path = to or new_run_path(name="demo")
    run = RunFolder.create(path, command="demo", config={"size": vars(size)}, seed=seed)
    start = time.perf_counter()
    made = _toured(run, size, seed, as_json=as_json)
    report = _keep(run, made, time.perf_counter() - start)
    if as_json:
        stops = {stop.name: {"found": stop.found, **stop.numbers} for stop in made}
        told = {"run": str(run.path), "report": str(report), "stops": stops}
        typer.echo(json.dumps(told, allow_nan=False))
        return
    typer.echo(f"Run folder: {run.path}")
    typer.echo(f"Page: {report}")
    if show and has_desktop(os.environ, sys.platform, terminal=sys.stdout.isatty()):
        typer.launch(str(report.resolve()))


def has_desktop(environment: Mapping[str, str], platform: str, *, terminal: bool) -> bool:
    """Whether someone sits before a screen: never in a pipe, over plain SSH or in CI."""
    if not terminal or environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    screen = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    return platform in ("darwin", "win32") or bool(screen)


def _toured(run: RunFolder, size: Size, seed: int, *, as_json: bool) -> Sequence[Stop]:
    """Every stop, told as soon as it is made."""
    from orderone.experiments.tour.route import stops

    # Where no one watches there is no bar, so that an error is one line.
    quiet = as_json or not sys.stderr.isatty()

    def bars(what: str) -> AbstractContextManager[Progress]:
        return counted(what, quiet=quiet)

    made: list[Stop] = []
    with run.writer() as records:
        for stop in stops(run, records, size, seed, bars=bars, quiet=quiet):
            made.append(stop)
            if not as_json:
                typer.echo(stop.found)
    return made


def _keep(run: RunFolder, made: Sequence[Stop], seconds: float) -> Path:
    """The page and the result."""
    from orderone.core.run import strict_json
    from orderone.experiments.tour.route import whereabouts
    from orderone.report.page import page

    sections = [section for stop in made for section in stop.sections]
    found = [stop.found for stop in made]
    text = page(title="orderone demo", found=found, sections=[*sections, whereabouts()])
    report = run.path / "report.html"
    report.write_text(text, encoding="utf-8")
    summary: dict[str, Any] = {stop.name: dict(stop.numbers) for stop in made}
    run.finish("done", strict_json({"seconds": round(seconds, 1), **summary}, "demo"))
    return report
