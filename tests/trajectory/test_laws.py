"""Series whose law is known are named by it, 19 times in 20."""

import numpy as np
import pytest
from scipy import optimize, stats

from orderone.trajectory import residuals
from orderone.trajectory.exponent import exponent_interval
from orderone.trajectory.growth import growth
from orderone.trajectory.laws import LAWS, MISALIGNED, fit, told

TRIALS = 20


def random_walk(rng, points=30, dimension=5000):
    """θ gains orthogonal steps: ‖θ_t‖² = ‖θ_0‖² + Σ‖δ‖²."""
    theta = 0.1 * rng.normal(size=dimension)
    norms = [np.linalg.norm(theta)]
    for _ in range(points - 1):
        theta = theta + 0.3 * rng.normal(size=dimension)
        norms.append(np.linalg.norm(theta))
    return np.arange(points) * 1000.0, np.array(norms)


def aligned(rng, points=30, each=20, dimension=2000):
    """Steps along θ at a rate 1/√t: ‖θ‖ ∝ exp(c√t)."""
    theta = rng.normal(size=dimension)
    norms = []
    for t in range(points * each):
        if t % each == 0:
            norms.append(np.linalg.norm(theta))
        rate = 1 / np.sqrt(t + 1)
        theta = theta * (1 + 0.06 * rate) + 0.002 * rate * rng.normal(size=dimension)
    return np.arange(0, points * each, each) * 1.0, np.array(norms)


def linear(rng, points=30, dimension=2000):
    """Steps of one length along θ."""
    theta = rng.normal(size=dimension)
    length = 0.1 * np.linalg.norm(theta)
    norms = []
    for _ in range(points):
        norms.append(np.linalg.norm(theta))
        theta = theta * (1 + length / norms[-1]) + 0.01 * rng.normal(size=dimension)
    return np.arange(points) * 10.0, np.array(norms)


def turning(rng, points=30, dimension=2000):
    """Steps along θ, then against it."""
    theta = rng.normal(size=dimension)
    length = 0.1 * np.linalg.norm(theta)
    norms = []
    for i in range(points):
        norms.append(np.linalg.norm(theta))
        sign = 1 if i < points // 2 else -1
        theta = theta * (1 + sign * length / norms[-1]) + 0.01 * rng.normal(size=dimension)
    return np.arange(points) * 10.0, np.array(norms)


@pytest.mark.parametrize(
    ("series", "law"),
    [(random_walk, "sqrt"), (aligned, "exp-sqrt"), (linear, "linear"), (turning, "turns")],
)
def test_a_known_law_is_named(series, law):
    rng = np.random.default_rng(0)
    named = [growth(*series(rng)).best for _ in range(TRIALS)]
    assert named.count(law) >= 19


def test_a_norm_with_a_limit_levels_off_there():
    steps = np.arange(100.0, 3100.0, 100.0)
    found = growth(steps, 50 - 900 / steps)
    assert found.best == "power"
    assert found.sentence.startswith("levels off at 50 as t^-1.00")


@pytest.mark.parametrize("memory", [0.0, 0.95])
def test_the_interval_covers_the_power_whatever_the_residuals_memory(memory):
    rng = np.random.default_rng(1)
    t = np.arange(1, 61) * 50.0
    covered = 0
    for _ in range(TRIALS):
        noise = rng.normal(size=60)
        for i in range(1, 60):
            noise[i] = memory * noise[i - 1] + np.sqrt(1 - memory**2) * noise[i]
        found = growth(t, 3 + 2 * (t / t[-1]) ** 0.7 + 1e-3 * noise, 0)
        assert found.best == "power"
        low, high = found.fits["power"].interval
        covered += low <= 0.7 <= high
    assert covered >= 16  # 95 % of 20, less three standard deviations


def test_the_interval_covers_the_square_root_of_random_walks():
    """Their residuals' memory is a part of the whole series: 95 in 100, less three deviations."""
    rng = np.random.default_rng(8)
    (power,) = [law for law in LAWS if law.name == "power"]
    covered = 0
    for _ in range(100):
        walk = np.cumsum(rng.normal(size=(40, 1500)), axis=0)
        low, high = fit(power, np.arange(1.0, 41.0), np.linalg.norm(walk, axis=1)).interval
        covered += low <= 0.5 <= high
    assert covered >= 88


def test_without_memory_the_interval_is_that_of_nonlinear_least_squares(monkeypatch):
    monkeypatch.setattr(residuals, "CORRELATIONS", np.zeros(1))
    t = np.arange(0, 31) / 30.0
    y = 3 + 2 * t**0.7 + 0.01 * np.random.default_rng(2).normal(size=31)

    def law(t, a, p, b):
        return a * t**p + b

    (a, p, _), covariance = optimize.curve_fit(law, t, y, [2, 0.7, 3], ftol=1e-14, xtol=1e-14)
    reach = stats.t.ppf(0.975, 28) * covariance[1, 1] ** 0.5
    found = exponent_interval(t, y, p, a, (0.0, 4.0))
    assert found == pytest.approx((p - reach, p + reach), rel=1e-4)


def test_an_exponent_that_nothing_tells_has_no_interval():
    t = np.arange(1, 11) / 10.0
    assert exponent_interval(t, np.ones(10), 0.5, 0.0, (0.0, 4.0)) == (-np.inf, np.inf)


def test_noise_is_not_told_apart():
    rng = np.random.default_rng(3)
    t = np.arange(1, 11) * 10.0
    unsure = sum(
        not growth(t, 10 + 0.02 * np.sqrt(t) + 0.1 * rng.normal(size=10)).sure
        for _ in range(TRIALS)
    )
    assert unsure >= 15


def test_a_short_walk_from_afar_is_seldom_wrongly_called_certain():
    """‖θ_0‖² is two thirds of the last: √ and a straight line are nearly one curve."""
    rng = np.random.default_rng(5)
    certain = 0
    for _ in range(TRIALS):
        theta = 2 * rng.normal(size=1500)
        norms = []
        for _ in range(20):
            norms.append(np.linalg.norm(theta))
            theta = theta + 0.3 * rng.normal(size=1500)
        found = growth(np.arange(20) * 1000.0, np.array(norms))
        certain += found.sure and found.best != "sqrt"
    assert certain <= 2


def test_the_sentence_tells_the_fit_that_was_best():
    """√(‖θ_0‖² + ct) is told as √t, with its own r² and not that of a√t + b."""
    t = np.arange(30) * 100.0
    found = growth(t, np.sqrt(4 + t / 1000))
    assert (found.best, found.form) == ("sqrt", MISALIGNED)
    assert found.fits["sqrt"].r2 < 0.97
    assert found.sentence.startswith("grows as √t, r² 1.000000")
    assert told(found.fit, t) == pytest.approx(np.sqrt(4 + t / 1000), rel=1e-3)
    assert found.as_json()["form"] == "sqrt-from-start"


def test_warm_up_is_found_and_left_out():
    rng = np.random.default_rng(4)
    t = np.arange(60) * 100.0
    norm = 2 + np.sqrt(t / 1000) * (1 + 1e-4 * rng.normal(size=60))
    norm[:8] = 10 - 0.5 * np.arange(8)
    found = growth(t, norm)
    assert found.start >= 8
    assert found.best == "sqrt"


def test_an_argument_excludes_warm_up():
    t = np.arange(20) * 100.0
    norm = np.where(t < 500, 9.0, np.sqrt(t))
    found = growth(t, norm, 500)
    assert (found.start, found.best) == (5, "sqrt")
    assert found.fits["sqrt"].r2 == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("norm", [np.ones(20), np.arange(1.0, 5.0), np.zeros(20)])
def test_too_little_is_said_to_be(norm):
    found = growth(np.arange(len(norm)) * 1.0, norm)
    assert found.best is None
    assert "too few" in found.sentence
