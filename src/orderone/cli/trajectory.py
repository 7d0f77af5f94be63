"""``orderone trajectory``: what a whole series of checkpoints tells, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from orderone.trajectory.told import Trajectory

PAIRS = ("all", "consecutive")


def trajectory(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="A folder of checkpoints, several folders or files, or OWNER/NAME."),
    ] = None,
    pairs: Annotated[str, typer.Option(help="all, or consecutive: the cheap version.")] = "all",
    memory: Annotated[str, typer.Option(help="Bound on memory.")] = "512MiB",
    order: Annotated[
        str | None, typer.Option(help="Regular expression whose first group is the step.")
    ] = None,
    start: Annotated[
        float | None, typer.Option("--from", help="Fit laws from this step; else found.")
    ] = None,
    points: Annotated[
        Path | None, typer.Option(help="CSV of step, norm_GROUP and cosines, without checkpoints.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="CSV of step and rate: the learning rates.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Only parameters whose names have this; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="No parameters whose names have this; repeatable.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File of a pass: a killed one goes on from there.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep/--drop", help="Keep downloads from the Hub, or read it without any disk."
        ),
    ] = True,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Read a checkpoint series once; exit code 1 if something is wrong with it."""
    from orderone.core.run import new_run_path
    from orderone.core.selection import Selection
    from orderone.trajectory.series import from_points

    _check(paths, points, pairs, to)
    _check_unused(points, order=order, include=include, exclude=exclude, resume=resume)
    rates = None if schedule is None else _rates(schedule)
    chosen = Selection(include=tuple(include or ()), exclude=tuple(exclude or ()))
    if points is not None:
        result = from_points(points, start=start, rates=rates)
    else:
        with _reading(quiet=as_json) as progress:
            result = _read(
                paths or [],
                pairs=pairs,
                memory=memory,
                order=order,
                start=start,
                rates=rates,
                selection=chosen if include or exclude else None,
                resume=resume,
                keep=keep,
                progress=progress,
            )
    what = str(points) if points is not None else " ".join(paths or [])
    settings = {"source": what, "pairs": pairs, "memory": memory, "order": order, "from": start}
    path = to or new_run_path(name="trajectory")
    summary = _keep(path, result, settings)
    typer.echo(
        summary if as_json else "\n".join([*_lines(result), f"Page: {path / 'report.html'}"])
    )
    return 1 if result.findings else 0


def _read(paths: list[str], **options: Any) -> Trajectory:
    """The series of one folder or repository, or of a list."""
    from orderone.trajectory.series import trajectory

    return trajectory(paths[0] if len(paths) == 1 else paths, **options)


def _check(paths: list[str] | None, points: Path | None, pairs: str, to: Path | None) -> None:
    from orderone.core.run import refuse_taken

    if (points is None) == (not paths):
        raise ConfigError(
            "both checkpoints and --points" if paths else "neither checkpoints nor --points",
            expected="one of them",
            do="name a folder of checkpoints, or a table by --points",
        )
    if paths and not all(paths):
        raise ConfigError(
            "a name that is empty",
            expected="a folder of checkpoints, or OWNER/NAME",
            do="check the command",
        )
    if pairs not in PAIRS:
        raise ConfigError(f"--pairs {pairs}", expected="all or consecutive", do="choose one")
    if to is not None:
        refuse_taken(to)


def _check_unused(points: Path | None, **options: object) -> None:
    """A table has no files and no parameters for these to be about."""
    given = [name for name, value in options.items() if value]
    if points is not None and given:
        raise ConfigError(
            f"--{given[0]} beside --points",
            expected="it with checkpoints only",
            do="leave it out",
        )


def _rates(path: Path) -> dict[int, float]:
    """Learning rates by step; each holds until the next."""
    import polars as pl

    try:
        if path.is_dir():
            raise pl.exceptions.ComputeError("a folder")
        frame = pl.read_csv(path, infer_schema_length=None).select("step", "rate").cast(pl.Float64)
        step = frame["step"]
        if sum(frame.null_count().row(0)) or not len(frame):
            raise pl.exceptions.ComputeError("a step or rate is missing")
        if not ((step % 1 == 0) & (step.abs() < 1 << 53)).all() or step.is_duplicated().any():
            raise pl.exceptions.ComputeError("a step is no whole number, or is there twice")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"'{path}' is not a schedule ({error})",
            expected="a CSV file with columns step and rate",
            do="correct it",
        ) from error
    return dict(zip(step.cast(pl.Int64).to_list(), frame["rate"].to_list(), strict=True))


@contextmanager
def _reading(*, quiet: bool) -> Generator[Callable[[int, int], None]]:
    """A bar of bytes read, with GB/s and the time left, on the error stream."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), disable=quiet)
    bar = bars.add_task("checkpoints", total=None, start=False)

    def show(done: int, total: int) -> None:
        if not bars.tasks[bar].started:
            # Only now: input that is refused leaves its one line alone on the error stream.
            bars.start()
            bars.start_task(bar)
        bars.update(bar, completed=done, total=total)

    try:
        yield show
    finally:
        if bars.tasks[bar].started:
            bars.stop()


def _lines(result: Trajectory) -> list[str]:
    """What was found, for a terminal."""
    findings = [f"{each.checkpoint}: {each.kind}: {each.detail}" for each in result.findings]
    return [*result.sentences, *findings, *result.notes]


def _keep(path: Path, result: Trajectory, settings: dict[str, Any]) -> str:
    """A run folder with records, parquet, pictures and page; the summary as JSON text."""
    from orderone.cli.trajectory_page import sections
    from orderone.core.run import RunFolder
    from orderone.report.page import page

    run = RunFolder.create(path, command="trajectory", config=settings, seed=None)
    summary = result.as_json()
    with run.writer() as records:
        records.write_all(result.records())
    result.frame().write_parquet(run.path / "trajectory.parquet")
    if result.pairs:
        result.pair_frame().write_parquet(run.path / "pairs.parquet")
        result.path().write_parquet(run.path / "path.parquet")
    title = f"orderone trajectory {settings['source']}"
    text = page(title=title, found=result.sentences, sections=sections(result))
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", summary)
    return json.dumps(summary, allow_nan=False)
