"""A table of points says what the checkpoints would have said."""

import numpy as np
import polars as pl
import pytest

from orderone.core.errors import ConfigError, DataError
from orderone.trajectory.dynamics import dynamics
from orderone.trajectory.geometry import Neighbours
from orderone.trajectory.points import from_norms, read_points
from orderone.trajectory.series import from_points


def vectors(count=12):
    rng = np.random.default_rng(0)
    return np.cumsum(rng.normal(size=(count, 400)), axis=0)


def test_steps_and_alignment_follow_from_norms_and_cosines():
    theta = vectors()
    delta = np.diff(theta, axis=0)
    norm, step = np.linalg.norm(theta, axis=1), np.linalg.norm(delta, axis=1)
    cosine = np.sum(theta[1:] * theta[:-1], axis=1) / (norm[1:] * norm[:-1])
    found = from_norms(norm, cosine)
    assert found.step_norm == pytest.approx(step, rel=1e-9)
    expected = np.sum(delta * theta[:-1], axis=1) / (step * norm[:-1])
    assert found.alignment == pytest.approx(expected, rel=1e-9)


def table(tmp_path, **columns):
    path = tmp_path / "points.csv"
    pl.DataFrame(columns).write_csv(path)
    return path


def test_layers_make_their_tower_and_its_law(tmp_path):
    steps = np.arange(40) * 500
    layers = {
        f"norm_encoder_layer_{i}": np.sqrt(3.0 * i + steps * (1 + 0.1 * i)) for i in (1, 2, 3)
    }
    cosine = [None, *np.full(39, 0.99)]
    found = from_points(table(tmp_path, step=steps, **layers, cosine_to_previous=cosine), start=100)
    whole = np.sqrt(sum(each**2 for each in layers.values()))
    assert found.groups["encoder"].norm == pytest.approx(whole, rel=1e-12)
    assert found.laws["encoder"].best == "sqrt"
    assert found.laws["encoder"].fits["power"].shape == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "text", ["step,norm_a,norm_a\n1,2,3\n2,3,4\n", "step,norm_\n1,2\n2,3\n", "step,norm_a\n1,2,3\n"]
)
def test_columns_that_cannot_be_told_apart_are_refused(tmp_path, text):
    (tmp_path / "points.csv").write_text(text)
    with pytest.raises(DataError):
        read_points(tmp_path / "points.csv")


@pytest.mark.parametrize("missing", ["", "nan", "NaN", "NA"])
def test_norms_may_be_missing(tmp_path, missing):
    (tmp_path / "points.csv").write_text(f"step,norm_a\n1,2\n2,{missing}\n3,4\n")
    norm = read_points(tmp_path / "points.csv").groups["a"].norm
    assert norm == pytest.approx([2, np.nan, 4], nan_ok=True)


@pytest.mark.parametrize(
    "columns",
    [
        {"norm_a": [1.0, 2.0]},
        {"step": [1, 2]},
        {"step": [2, 1], "norm_a": [1.0, 2.0]},
        {"step": [1, 2], "norm_a": ["x", "y"]},
        {"step": [1.5, 2.5], "norm_a": [1.0, 2.0]},
        {"step": [-1, 2], "norm_a": [1.0, 2.0]},
        {"step": [1, 2], "norm_a": [-1.0, 2.0]},
        {"step": [1, 2], "norm_a": [1.0, float("inf")]},
        {"step": [1, 2], "norm_a": [1.0, 2.0], "cosine_a": [None, 1.5]},
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path, columns):
    with pytest.raises(DataError):
        read_points(table(tmp_path, **columns))


def neighbours(theta):
    norm = np.linalg.norm(theta, axis=1)
    cosine = np.sum(theta[1:] * theta[:-1], axis=1) / (norm[1:] * norm[:-1])
    return from_norms(norm, cosine)


def test_a_random_walk_is_misaligned_and_growth_along_itself_aligned():
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.normal(size=(30, 5000)), axis=0)
    steps = np.arange(30)
    assert dynamics(steps, neighbours(walk)).verdict == "misaligned"
    along = walk[0] * 1.1 ** np.arange(30)[:, None]
    found = dynamics(steps, neighbours(along))
    assert found.verdict == "aligned"
    assert found.aligned < 1e-6


def test_a_schedule_tells_without_steps():
    steps = np.arange(0, 1000, 50)
    rates = {k: 1 / np.sqrt(k + 1) for k in range(1000)}
    eta = np.array([rates[k] for k in range(1000)])
    aligned = np.exp(0.05 * np.concatenate([[0], np.cumsum(eta)])[steps])
    missing = np.full(len(steps) - 1, np.nan)
    group = Neighbours(norm=aligned, step_norm=missing, alignment=missing, one_minus_cosine=missing)
    found = dynamics(steps, group, rates=rates).scheduled
    assert found["aligned"] == pytest.approx(1, abs=1e-9)
    assert found["misaligned"] < 0.99


def test_a_schedule_of_few_rates_over_many_steps():
    """Each rate holds until the next: 10⁹ updates are not listed one by one."""
    steps = np.array([0, 10, 25, 40]) * 10**11
    rates = {0: 1e-12, 15 * 10**11: 3e-12}
    summed = np.array([0, 10, 15 + 3 * 10, 15 + 3 * 25]) * 0.1
    missing = np.full(3, np.nan)
    norm = np.exp(0.2 * summed)
    group = Neighbours(norm=norm, step_norm=missing, alignment=missing, one_minus_cosine=missing)
    assert dynamics(steps, group, rates=rates).scheduled["aligned"] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ConfigError):
        dynamics(np.arange(12), neighbours(vectors()), rates={0: 0.1, 5: rate})


def test_a_norm_that_begins_at_nothing_has_no_logarithm_there(recwarn):
    """Biases are 0 at initialisation."""
    norm = np.concatenate([[0.0], np.exp(0.1 * np.arange(11))])
    missing = np.full(11, np.nan)
    group = Neighbours(norm=norm, step_norm=missing, alignment=missing, one_minus_cosine=missing)
    found = dynamics(np.arange(12), group, rates={0: 0.1}).scheduled
    assert found["aligned"] == pytest.approx(1, abs=1e-9)
    nothing = Neighbours(
        norm=np.zeros(12), step_norm=missing, alignment=missing, one_minus_cosine=missing
    )
    assert dynamics(np.arange(12), nothing, rates={0: 0.1}).scheduled == {}
    assert not recwarn.list


def test_rates_of_zero_explain_nothing():
    found = dynamics(np.arange(12), neighbours(vectors()), rates={0: 0.0}).scheduled
    assert found["aligned"] < 0.01
