"""Norm growth over trainings: accounts of growth, shares by spacing, thresholds of weight decay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from orderone.core.errors import DataError
from orderone.experiments import small_steps
from orderone.experiments.alignment_course import Course
from orderone.experiments.decayed_models import Cell, Grid, log_grid, trained_cell
from orderone.experiments.norm_charts import averaged
from orderone.experiments.reproduction import Stage
from orderone.experiments.reproductions import alignment, dynamics, small_lm, t5_norms
from orderone.experiments.small_models import SmallModel, trained
from orderone.experiments.small_saturation import development_batches, small_saturation
from orderone.experiments.small_steps import Accounted, Walk
from orderone.experiments.small_training import Task
from orderone.experiments.t5_series import t5_series
from orderone.experiments.t5_training import Size, t5_like_series, t5_size
from orderone.trajectory.geometry import Neighbours
from orderone.trajectory.series import trajectory

from .tiny import TINY, stage_in

EVERY_STEP = replace(TINY, placement="post", checkpoints=8)


@pytest.fixture
def stage(tmp_path: Path):
    with stage_in(tmp_path) as made:
        yield made


def tiny(stage: Stage, **changes: Any) -> SmallModel:
    """With too few checkpoints for laws, whose fits would take longest."""
    return replace(TINY, **changes)


def neighbours(path: np.ndarray) -> Neighbours:
    """Of points in a plane, each computed from its definition."""
    delta = np.diff(path, axis=0)
    norm, step = np.linalg.norm(path, axis=1), np.linalg.norm(delta, axis=1)
    cosine = (path[:-1] * path[1:]).sum(axis=1) / (norm[:-1] * norm[1:])
    along = (delta * path[:-1]).sum(axis=1) / (norm[:-1] * step)
    return Neighbours(norm=norm, step_norm=step, alignment=along, one_minus_cosine=1 - cosine)


def test_each_account_is_exact_where_it_holds() -> None:
    straight = neighbours(np.outer(np.linspace(1, 3, 9), [0.6, 0.8]))
    points = [np.array([1.0, 0.0])]
    for _ in range(8):
        x, y = points[-1]
        points.append(points[-1] + 0.5 * np.array([-y, x]))
    round_and_out = neighbours(np.stack(points))
    assert Accounted.of(straight).aligned == pytest.approx(1)
    assert not Accounted.of(straight).is_misaligned
    assert Accounted.of(round_and_out).misaligned == pytest.approx(1)
    assert Accounted.of(round_and_out).is_misaligned


def test_single_steps_are_those_of_checkpoints_at_every_step(stage: Stage) -> None:
    """The watch sums a step while it is taken; the trajectory reads the weights it left."""
    model = trained(stage, EVERY_STEP)
    walk = Walk(model=model, series=trajectory(model.series))
    assert walk.spacing == 1
    assert walk.steps.share == pytest.approx(walk.by_checkpoint.shares[1], rel=1e-4)
    assert walk.steps.alignment == pytest.approx(walk.checkpoints.alignment, abs=1e-5)
    assert walk.steps.norm == pytest.approx(walk.checkpoints.norm, rel=1e-6)
    assert walk.by_step.misaligned == pytest.approx(walk.by_checkpoint.misaligned, rel=1e-3)


def test_a_rate_that_falls_is_told_as_it_was_applied(stage: Stage) -> None:
    """AdamW's first step is of size lr in every entry: the warm-up's first rate is lr / warmup."""
    slow = replace(TINY, schedule="inverse-sqrt", lr=1e-2, warmup=4, weight_decay=0.0)
    fast = replace(slow, warmup=0, lr=1e-2 / 4)
    steps = [trained(stage, each).values("step_norm")[1][0] for each in (slow, fast)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-4)
    assert [slow.multiplier(8)(t) for t in (0, 3, 15)] == [0.25, 1.0, 0.5]


def test_decay_alone_shrinks_as_it_must(tmp_path: Path) -> None:
    """(1 − ηλ)^T, where steps of 1e-7 are too small to matter."""
    model = replace(TINY, lr=1e-7, weight_decay=1e5, checkpoints=1, watch_every=10**9)
    cell = trained_cell(Task(chosen=model, folder=tmp_path, device="cpu", data=None, seed=0))
    assert set(cell.ratios) == {"encoder", "everything"}
    for ratio in cell.ratios.values():
        assert ratio == pytest.approx(0.99**8, rel=1e-4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        ([1.2, 1.1, 0.9], (1e-3, 1e-1)),
        ([0.9, 0.9, 0.9], (0.0, 1e-5)),
        ([1.1, 1.1, 1.1], (1e-1, np.inf)),
        ([1.1, 0.9, 1.1], None),
        ([1.1, float("nan"), 0.9], (1e-5, 1e-3)),
    ],
)
def test_threshold_is_where_growth_ends(
    ratios: list[float], found: tuple[float, float] | None
) -> None:
    cells = [
        Cell(lr=1.0, weight_decay=wd, ratios={"encoder": ratio, "everything": 1.0})
        for wd, ratio in zip([1e-5, 1e-3, 1e-1], ratios, strict=True)
    ]
    assert Grid(name="", cells=cells[::-1]).threshold(1.0, "encoder") == found


def test_the_papers_grid() -> None:
    values = log_grid(20)
    assert (len(values), values[0], values[-1]) == (20, 1e-5, 1e-1)
    assert log_grid(9)[4] == 1e-3


def test_means_over_parts_keep_the_mean() -> None:
    values = np.arange(12.0) ** 2
    steps, means = averaged(np.arange(12), values, 4)
    assert list(steps) == [1, 4, 7, 10]
    assert means.mean() == pytest.approx(values.mean())


def test_padding_is_measured_where_it_is_a_word(stage: Stage) -> None:
    (causal,) = development_batches(trained(stage, TINY), 4)
    (coded,) = development_batches(trained(stage, replace(TINY, mask="zero")), 4)
    assert "real" not in coded
    assert coded["tokens"].shape == (4, TINY.T)
    assert int(causal["real"].sum()) == int(TINY.text(None).validation.lengths[:4].sum())


def test_an_untrained_model_is_as_saturated_as_before(stage: Stage) -> None:
    model = trained(stage, TINY)
    found = small_saturation(replace(model, model=model.initial), 4)
    assert found.random == found.layers


def test_t5_is_as_published_and_a_bent_series_is_not() -> None:
    found = t5_series()
    course = Course.of(found.groups["encoder"])
    assert t5_norms.as_published(found, course)
    assert not t5_norms.as_published(found, replace(course, peak=0.3))
    assert not t5_norms.as_published(found, replace(course, end=0.2))


def test_t5s_initialisation_is_the_published_start() -> None:
    encoder, total = t5_norms.initial_norms(768, 3072, 64, 12)
    found = t5_series().groups
    assert found["encoder"].norm[0] == pytest.approx(encoder, rel=0.01)
    assert found["plotted_total"].norm[0] == pytest.approx(total, rel=0.01)


def test_our_t5_like_series_has_its_encoder_within_its_total(stage: Stage) -> None:
    smoke = t5_size(stage)
    size = Size(config=smoke.config, steps=8, batch=2, warmup=2, every=2, text=20_000)
    found = t5_like_series(stage, size)
    assert list(found["total"].steps) == list(found["encoder"].steps)
    assert np.all(found["encoder"].groups["total"].norm < found["total"].groups["total"].norm)
    assert not (stage.run.path / "trained" / "checkpoints").exists()


def test_t5_at_papers_scale_asks_for_text(stage: Stage) -> None:
    size = t5_size(replace(stage, scale="paper"))
    with pytest.raises(DataError, match="no text"):
        t5_like_series(stage, replace(size, config=t5_size(stage).config))


@pytest.mark.parametrize("module", [small_lm, alignment, dynamics])
def test_both_columns_are_reported_and_kept(
    module: ModuleType, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_lm, "small_model", tiny)
    monkeypatch.setattr(small_steps, "small_model", tiny)
    outcome = module.reproduce(stage)
    assert outcome.as_coded
    assert outcome.sections[0].chart is not None
    stage.records.flush()
    kept = stage.run.records()
    said = " ".join(kept["series"].drop_nulls().unique())
    assert all(part in said for part in ("branch", "post", "as coded"))


def test_growth_in_every_model_is_what_small_lm_claims(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop = replace(stage, scale="laptop")
    for lr, weight_decay, held in ((3e-2, 0.0, True), (1e-7, 1e5, False)):
        monkeypatch.setattr(
            small_lm, "small_model", partial(tiny, lr=lr, weight_decay=weight_decay)
        )
        assert small_lm.reproduce(laptop).held is held
