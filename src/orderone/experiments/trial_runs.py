"""Many runs of one configuration with settings changed, each in a run folder named by its point.

FOLDER/run.json, report.html      the search or sweep
FOLDER/trials/lr=0.002_wd=0.1/    a trial, as orderone train would have made it

A finished trial is read, not run again; one that was killed goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from orderone.core.errors import ConfigError, OrderoneError, RunError
from orderone.core.files import write_atomically
from orderone.core.run import RunFolder, new_run_path
from orderone.experiments.run_config import RunConfig
from orderone.experiments.workers import Spread
from orderone.training.checkpoint import remove
from orderone.training.config import checked, differences, read_toml
from orderone.training.resume import clear_unborn

TABLES = ("search", "sweep")
"""Of a configuration file, beside those of a training run."""


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """A configuration and its folder: plain data, which any process can be sent."""

    settings: dict[str, Any]
    folder: Path
    keep_checkpoints: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """What came of a trial."""

    loss: float
    """Validation loss in nats; infinite where training failed."""
    why: str = ""
    """How it failed."""
    refused: tuple[str, str, str] | None = None
    """What, expected, do: an error that is not this trial's alone."""


def run_trial(trial: TrialRun) -> TrialEnd:
    """The trial's end, from its folder where it has ended before. Raises nothing of ours.

    An exception of ours cannot be sent from process to process, and one diverged trial must not
    end the others.
    """
    try:
        return finished(trial.folder) or _trained(trial)
    except OrderoneError as error:
        return TrialEnd(loss=math.inf, refused=(error.found, error.expected, error.do))


def finished(folder: Path) -> TrialEnd | None:
    """How the trial in ``folder`` ended; None where it has not."""
    if not (folder / "run.json").exists():
        return None
    result = RunFolder.open(folder).result
    if result is None:
        return None
    summary = cast("dict[str, Any]", result["summary"])
    if result["status"] != "done":
        return TrialEnd(loss=math.inf, why=str(summary.get("why", "failed")))
    loss = float(summary["validation"])
    return TrialEnd(loss=loss if math.isfinite(loss) else math.inf)


def spread_trials(
    run: Spread[TrialRun, TrialEnd], trials: Sequence[TrialRun]
) -> Iterator[tuple[int, TrialEnd]]:
    """(index, end) of every trial; what was refused to one ends them all."""
    for index, end in run(trials):
        if end.refused is not None:
            found, expected, do = end.refused
            raise ConfigError(
                f"trial {trials[index].folder.name}: {found}", expected=expected, do=do
            )
        yield index, end


def _trained(trial: TrialRun) -> TrialEnd:
    from orderone.experiments.training_run import train_run

    config = checked(RunConfig, trial.settings)
    why = ""
    try:
        train_run(config, to=trial.folder, resumes=True)
    except RunError as error:
        if isinstance(error.__cause__, OSError):
            raise  # a disk that is full is no property of the trial
        why = error.found
    except RuntimeError as error:
        why = str(error).splitlines()[0]
    if why:
        RunFolder.open(trial.folder).finish("failed", {"why": why})
    if not trial.keep_checkpoints:
        for path in (trial.folder / "checkpoints").iterdir():
            remove(path)
    end = finished(trial.folder)
    assert end is not None
    return end


def read_tables(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A training run's settings in a TOML file, and its tables [search] and [sweep]."""
    settings = read_toml(path)
    tables = {name: settings.pop(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{name} = {table!r}", expected=f"a table [{name}]", do="correct it")
    return checked(RunConfig, settings).model_dump(mode="json"), tables


def opened(
    command: str, settings: Mapping[str, Any], *, to: Path | None, resumes: bool, free: str
) -> RunFolder:
    """The folder of a search or sweep, made or gone on with; ``free`` may differ when resumed."""
    if not resumes:
        path = to or new_run_path(name=command)
        return RunFolder.create(path, command=command, config=settings, seed=None)
    path = to or _left(command, settings, free)
    if not (path / "run.json").exists():
        clear_unborn(path)
        return RunFolder.create(path, command=command, config=settings, seed=None)
    run = RunFolder.open(path)
    other = _differing(run, settings, free)
    if run.command != command or other:
        was = f"orderone {run.command}" if run.command != command else other[0]
        raise ConfigError(
            f"'{path}', a run with {was}",
            expected=f"one of orderone {command} with this configuration",
            do="restore it, or start anew without --resume",
        )
    return run


def _left(command: str, settings: Mapping[str, Any], free: str) -> Path:
    for path in sorted(Path("runs").glob(f"{command}-*"), reverse=True):
        if (path / "run.json").exists() and not _differing(RunFolder.open(path), settings, free):
            return path
    raise ConfigError(
        "--resume, and no run of this configuration under 'runs'",
        expected="one that was started with it",
        do="name its folder with --to",
    )


def _differing(run: RunFolder, settings: Mapping[str, Any], free: str) -> list[str]:
    before, now = ({k: v for k, v in each.items() if k != free} for each in (run.config, settings))
    return differences(before, now)


def point_name(point: Mapping[str, Any]) -> str:
    """A point's settings as the name of a folder; a hash stands for what a name cannot hold."""
    plain = "_".join(f"{key}={_short(value)}" for key, value in point.items())
    safe = re.sub(r"[^\w.=+-]", "-", plain)[:100]
    if safe == plain:
        return plain
    return f"{safe}-{hashlib.sha256(json.dumps(point).encode()).hexdigest()[:8]}"


def _short(value: Any) -> str:
    return (
        f"{value:.6g}"
        if isinstance(value, float) and float(f"{value:.6g}") == value
        else (str(value))
    )


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with values at dotted keys replaced."""
    copy = json.loads(json.dumps(settings))
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        inner = copy
        for key in path:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            raise ConfigError(
                f"sweep.{dotted}, within what is no table", expected="a key", do="correct it"
            )
        inner[last] = value
    return copy


def mean_and_error(losses: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds, and its standard error; infinite where one of them failed."""
    mean = sum(losses) / len(losses)
    if len(losses) < 2 or not math.isfinite(mean):
        return mean, None
    variance = sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1)
    return mean, math.sqrt(variance / len(losses))


def finish(run: RunFolder, verdict: str, summary: Mapping[str, Any], page: str) -> None:
    """The page and the result."""
    write_atomically(run.path / "report.html", page.encode())
    run.finish(verdict, summary)
