"""Trainings side by side: what their records say, and when a difference counts as known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from orderone.core.errors import ConfigError
from orderone.core.run import RunFolder
from orderone.experiments.lesson import lesson_of
from orderone.experiments.reproduction import Stage
from orderone.experiments.run_config import RunConfig
from orderone.experiments.side_by_side import Course, all_of, apart, at_most, keep, trained
from orderone.training.config import checked
from orderone.training.distributed import Ranks


def settings(**more: Any) -> dict[str, Any]:
    """Of a training that takes a moment."""
    return {
        "steps": 4,
        "batch_size": 8,
        "evaluate_every": 2,
        "evaluation_batches": 1,
        "model": {"kind": "vision", "n": 16, "H": 2, "encoders": 1, "patch": 4},
        "images": {"name": "digits"},
        "optimizer": {"lr": 1.0},
        **more,
    }


def stage(tmp_path: Path) -> Stage:
    run = RunFolder.create(tmp_path / "run", command="reproduce", config={}, seed=0)
    return Stage(
        scale="smoke",
        seed=0,
        run=run,
        records=run.writer(),
        progress=lambda done, total: None,
    )


def test_each_training_is_told_from_its_records(tmp_path: Path) -> None:
    here, told = stage(tmp_path), list[tuple[int, int]]()
    runs = {"good": settings(), "bad": settings(optimizer={"lr": 1e30})}
    found = trained(here, runs, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    good, bad = found["good"], found["bad"]
    records = RunFolder.open(here.run.path / "trials" / "good").records()
    written = records.filter(name="accuracy", split="validation")
    assert good.accuracies == tuple(written.select("step", "value").iter_rows())
    assert [step for step, _ in good.losses] == [0, 2, 4]
    assert good.loss == good.losses[-1][1]
    assert not good.failed
    assert good.accuracy == good.accuracies[-1][1]
    assert bad.failed
    assert "nan" in bad.why
    assert bad.accuracy == 0
    keep(here, good, strategy="s")
    here.records.close()
    kept = here.run.records()
    assert kept.filter(name="accuracy")["value"].to_list() == [each for _, each in good.accuracies]
    assert kept["strategy"].unique().to_list() == ["s"]


def test_spikes_and_shifts_of_the_loss_are_counted_apart(tmp_path: Path) -> None:
    """A level that the loss leaves for good is no spike; the gradient's are another count."""
    from orderone.core.record import Record
    from orderone.experiments.side_by_side import course_of
    from orderone.experiments.trial_runs import TrialEnd

    run = RunFolder.create(tmp_path / "run", command="train", config={}, seed=0)
    kinds = [("spike", "loss"), ("spike", "loss"), ("shift", "loss"), ("spike", "gradient_norm")]
    with run.writer() as records:
        records.write(Record(3, "loss", 1.5, {"split": "validation"}))
        for step, (kind, which) in enumerate(kinds):
            records.write(Record(step, kind, 2.0, {"which": which, "began": "0"}))
    course = course_of(run.path, TrialEnd(loss=1.5))
    assert (course.spikes, course.shifts) == (2, 1)
    assert course.losses == ((3, 1.5),)


@pytest.mark.parametrize(
    ("value", "error", "answer"),
    [
        (0.5, 0.2, True),
        (0.5, 0.25, True),
        (0.5, 0.3, None),
        (1.5, 0.3, None),
        (1.5, 0.2, False),
        (0.0, None, None),
        (math.inf, None, None),
    ],
)
def test_a_bound_is_judged_where_two_errors_leave_no_doubt(
    value: float, error: float | None, answer: bool | None
) -> None:
    assert at_most(value, error, 1.0) is answer


def test_one_failure_outweighs_what_is_unknown() -> None:
    assert all_of([True, True]) is True
    assert all_of([True, None]) is None
    assert all_of([None, False, True]) is False


def test_errors_of_two_means_add_in_quadrature() -> None:
    difference, error = apart([1.0, 3.0], [0.0, 2.0, 4.0])
    assert difference == 0
    # Variances 2 and 4 over 2 and 3 values.
    assert error == pytest.approx(math.sqrt(2 / 2 + 4 / 3))
    assert apart([1.0], [0.0, 2.0]) == (0.0, None)


def test_a_failed_course_has_no_accuracy() -> None:
    course = Course(loss=math.inf, why="nan", losses=(), accuracies=((2, 0.9),), spikes=0, shifts=0)
    assert course.accuracy == 0


@pytest.mark.parametrize("held_out", ["validation", "test"])
def test_what_is_held_out_can_be_the_test_set(held_out: str) -> None:
    """Of ten digits of a class two test and one validates."""
    images = {"name": "digits", "held_out": held_out}
    config = checked(RunConfig, settings(images=images, evaluation_batches=1000))
    batches = lesson_of(config, Ranks()).validation()
    count = sum(len(batch.images) for batch in batches)
    assert abs(count / 1797 - {"validation": 0.1, "test": 0.2}[held_out]) < 0.005


def test_nothing_else_is_held_out() -> None:
    with pytest.raises(ConfigError, match="held_out"):
        checked(RunConfig, settings(images={"name": "digits", "held_out": "train"}))
