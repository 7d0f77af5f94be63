"""Slopes: exact on power laws, Student's interval against scipy's and against repetition."""

import math
import random

import pytest
from scipy import stats

from orderone.core.errors import ConfigError
from orderone.experiments.expectation import verdict
from orderone.experiments.slope import (
    Estimate,
    exponent,
    loglog_slope,
    mean_interval,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize("power", [-1.5, -0.5, 0.0, 0.7])
def test_a_power_law_is_recovered(power: float) -> None:
    x = [64.0, 128.0, 300.0, 1024.0]
    found = loglog_slope(x, [3 * each**power for each in x])
    assert found is not None
    assert found.value == pytest.approx(power, abs=1e-12)
    assert found.high - found.low < 1e-9
    assert exponent(x, [3 * each**power for each in x]) == pytest.approx(power, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 13, 28])
def test_student_agrees_with_scipy(freedom: int) -> None:
    for t in (-3.0, -0.4, 0.0, 1.3, 12.0):
        assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for p in (0.6, 0.975, 0.999):
        assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9)


def test_the_interval_is_that_of_linear_regression() -> None:
    generator = random.Random(0)
    x = [64.0, 128.0, 256.0, 512.0] * 3
    y = [each**-0.5 * math.exp(generator.gauss(0, 0.2)) for each in x]
    fitted = stats.linregress([math.log(a) for a in x], [math.log(b) for b in y])
    half = stats.t.ppf(0.975, len(x) - 2) * fitted.stderr
    found = loglog_slope(x, y)
    assert found is not None
    assert found.value == pytest.approx(fitted.slope)
    assert found.high == pytest.approx(fitted.slope + half)
    assert found.low == pytest.approx(fitted.slope - half)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """95 % within 4·√(0.95·0.05/k) over k = 1000 repetitions, also with 3 values only."""
    generator, k = random.Random(1), 1000
    inside = 0
    for _ in range(k):
        found = mean_interval([generator.gauss(2.0, 1.0) for _ in range(3)])
        inside += found.low < 2.0 < found.high
    assert abs(inside / k - 0.95) < 4 * math.sqrt(0.95 * 0.05 / k)


def test_what_has_no_slope() -> None:
    assert loglog_slope([1, 2, 4], [1.0, 0.0, 1.0]) is None
    infinite = loglog_slope([1, 2, 4], [1.0, math.inf, 1.0])
    assert infinite is not None
    assert math.isnan(infinite.value)
    assert mean_interval([2.0]).high == math.inf
    with pytest.raises(ConfigError, match="3 points"):
        loglog_slope([1, 1, 1], [1.0, 1.0, 1.0])


def estimate(value: float, half: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


@pytest.mark.parametrize(
    ("slope", "expected", "said"),
    [
        (None, 0.0, "does not move"),
        (estimate(math.nan), 0.0, "not finite"),
        (estimate(0.5), 0.0, "grows"),
        (estimate(0.5), -0.5, "grows"),
        (estimate(0.5), None, "grows"),
        (estimate(0.2, 0.3), 0.0, "unclear"),
        (estimate(0.05), 0.0, "order one"),
        (estimate(-0.05), None, "order one"),
        (estimate(-0.5), -0.5, "decays as expected"),
        (estimate(-0.3), -0.5, "decays"),
        (estimate(-0.3), 0.0, "decays"),
        (estimate(-0.3), None, "decays"),
    ],
)
def test_verdicts(slope: Estimate | None, expected: float | None, said: str) -> None:
    assert verdict(slope, expected) == said


def test_a_bound_is_met_by_all_that_falls_faster() -> None:
    assert verdict(estimate(-0.9), -0.5, bound=True) == "decays as expected"
    assert verdict(estimate(-0.2), -0.5, bound=True) == "decays"
