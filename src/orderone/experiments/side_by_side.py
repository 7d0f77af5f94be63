"""Trainings of one experiment side by side, each in a run folder, and what their records say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from orderone.core.record import Record, read_records
from orderone.experiments.reproduction import Stage
from orderone.experiments.trial_runs import (
    TrialEnd,
    TrialRun,
    mean_and_error,
    run_trial,
    spread_trials,
)
from orderone.experiments.workers import workers

Curve = tuple[tuple[int, float], ...]
"""(step, value)."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """What came of a training, and how it went."""

    loss: float
    """The last validation loss in nats; infinite where training failed."""
    why: str
    """How it failed."""
    losses: Curve
    """Validation loss by step."""
    accuracies: Curve
    """Of a model of images."""
    spikes: int
    """Times that the training loss left its level and came back."""
    shifts: int
    """Times that it left for good."""

    @property
    def failed(self) -> bool:
        return not math.isfinite(self.loss)

    @property
    def accuracy(self) -> float:
        """The last one; 0 where training failed."""
        return 0.0 if self.failed or not self.accuracies else self.accuracies[-1][1]


def trained(
    stage: Stage,
    settings: Mapping[str, Mapping[str, Any]],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Course]:
    """Each training by its name, which is that of its folder too."""
    names = list(settings)
    trials = [
        TrialRun(settings=dict(settings[name]), folder=stage.run.path / "trials" / name)
        for name in names
    ]
    ends: dict[int, TrialEnd] = {}
    with workers(run_trial, processes=stage.processes) as run:
        for index, end in spread_trials(run, trials):
            ends[index] = end
            (progress or stage.progress)(len(ends), len(trials))
    return {name: course_of(trials[i].folder, ends[i]) for i, name in enumerate(names)}


def course_of(folder: Path, end: TrialEnd) -> Course:
    """From the records of a training that has ended."""
    frame = read_records(folder / "records.jsonl")
    held_out = _where(frame, split="validation")
    excursions = _where(frame, which="loss")
    return Course(
        loss=end.loss,
        why=end.why,
        losses=_curve(held_out, "loss"),
        accuracies=_curve(held_out, "accuracy"),
        spikes=len(excursions.filter(pl.col("name") == "spike")),
        shifts=len(excursions.filter(pl.col("name") == "shift")),
    )


def keep(stage: Stage, course: Course, **labels: str) -> None:
    """Its curves and counts as records of the experiment."""
    for name, curve in (("loss", course.losses), ("accuracy", course.accuracies)):
        stage.records.write_all(Record(step, name, value, labels) for step, value in curve)
    for name, count in (("spikes", course.spikes), ("shifts", course.shifts)):
        stage.records.write(Record(0, name, count, labels))
    stage.records.write(Record(0, "failed", float(course.failed), labels))


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """True where all hold, False where one does not; None where some cannot be told."""
    told = list(answers)
    if False in told:
        return False
    return None if None in told else True


def judged(stage: Stage, answer: bool | None) -> bool | None:
    """The answer, but of a smoke run, which shows only that everything works."""
    return None if stage.scale == "smoke" else answer


def reason(stage: Stage, why: str) -> str:
    """What goes with ``judged``."""
    if stage.scale != "smoke":
        return why
    return f"Models so small, trained so shortly, are no test of the claim. {why}".strip()


def at_most(value: float, error: float | None, bound: float) -> bool | None:
    """Whether value ≤ bound, told only where two standard errors leave no doubt."""
    if error is None:
        return None
    if value + 2 * error <= bound:
        return True
    return False if value - 2 * error > bound else None


def apart(first: Sequence[float], second: Sequence[float]) -> tuple[float, float | None]:
    """mean(first) − mean(second) and its standard error; None where either is a single value."""
    (a, error_a), (b, error_b) = mean_and_error(first), mean_and_error(second)
    if error_a is None or error_b is None:
        return a - b, None
    return a - b, math.hypot(error_a, error_b)


def _where(frame: pl.DataFrame, **label: str) -> pl.DataFrame:
    """Rows with that label; a file without it has none."""
    ((key, value),) = label.items()
    return frame.filter(pl.col(key) == value) if key in frame.columns else frame.clear()


def _curve(frame: pl.DataFrame, name: str) -> Curve:
    rows = frame.filter(pl.col("name") == name).sort("step")
    return tuple(rows.select("step", "value").iter_rows())
