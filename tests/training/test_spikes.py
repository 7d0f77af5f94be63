"""Spikes on curves whose spikes are known; how often noise alone is taken for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from orderone.core.record import Record, RecordWriter, read_records
from orderone.training.course import Setting
from orderone.training.distributed import ALONE
from orderone.training.loop import StepTaken
from orderone.training.spikes import Excursion, SpikeRule, SpikeWatch, excursions

Curve = NDArray[np.float64]


def found(values: Curve, rule: SpikeRule | None = None) -> list[Excursion]:
    return list(excursions(enumerate(values.tolist(), start=1), rule=rule))


def learning(steps: int, seed: int, noise: float = 0.03) -> Curve:
    """A loss that falls from 9 as t^(−0.15), with noise of its logarithm."""
    t = np.arange(1, steps + 1)
    return 9 * t**-0.15 * np.exp(noise * np.random.default_rng(seed).standard_normal(steps))


def spiked(curve: Curve, at: list[int], height: float, length: float) -> Curve:
    """Spikes that leap to ``height`` times the curve and decay over ``length`` steps."""
    t = np.arange(1, len(curve) + 1)
    tails = [(t >= a) * np.exp(-np.maximum(t - a, 0) / length) for a in at]
    return curve * np.exp(math.log(height) * np.sum(tails, axis=0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("height", "length"), [(1.6, 10.0), (3.0, 4.0), (20.0, 40.0)])
def test_planted_spikes_are_found_where_they_begin(height: float, length: float, seed: int) -> None:
    at = [300, 700, 1250, 1600]
    events = found(spiked(learning(2000, seed), at, height, length))
    assert [(each.kind, each.began) for each in events] == [("spike", a) for a in at]
    for each in events:
        # Noise of 3 %, the largest of a few; and the curve that falls within the window.
        assert each.height == pytest.approx(height, rel=0.15)
        # Back at half of 6 deviations of 3 %, give or take three of them.
        low, high = (length * math.log(math.log(height) / x) for x in (0.25, 0.05))
        assert low - 3 < each.ended - each.began < high + 3


def normal(rng: np.random.Generator, n: int) -> Curve:
    return rng.standard_normal(n)


def heavy(rng: np.random.Generator, n: int) -> Curve:
    """Student's t with 3 degrees of freedom: no fourth moment."""
    return rng.standard_t(3, n)


def skew(rng: np.random.Generator, n: int) -> Curve:
    return rng.exponential(size=n)


def correlated(rho: float) -> Callable[[np.random.Generator, int], Curve]:
    def draw(rng: np.random.Generator, n: int) -> Curve:
        x = rng.standard_normal(n)
        for i in range(1, n):
            x[i] = rho * x[i - 1] + math.sqrt(1 - rho**2) * x[i]
        return x

    return draw


@pytest.mark.parametrize(
    ("noise", "rate"),
    [(normal, 0), (correlated(0.5), 0), (correlated(0.9), 3e-5), (heavy, 3e-5), (skew, 3e-4)],
)
def test_noise_alone_is_hardly_ever_a_spike(
    noise: Callable[[np.random.Generator, int], Curve], rate: float
) -> None:
    """False alarms a step, k/n ± √k/n; over n = 200,000 of logarithms with deviation 0.03:

    normal 0/n; autocorrelated 0.5: 0/n, 0.9: (1.5 ± 0.9)·10⁻⁵; t with 3 degrees: (1.0 ± 0.7)·10⁻⁵;
    exponential (14.5 ± 2.7)·10⁻⁵. Here n is 40,000, and the count within 4 √k of twice that
    rate.
    """
    n = 40_000
    k = len(found(np.exp(0.03 * noise(np.random.default_rng(1), n))))
    assert k <= rate * n + 4 * math.sqrt(rate * n)


def test_trends_are_no_spikes() -> None:
    t = np.arange(2000)
    rng = np.random.default_rng(0)
    for slope in (-0.02, -0.001, 0.001, 0.02):
        for noise in (0.0, 0.02):
            assert not found(np.exp(slope * t + noise * rng.standard_normal(len(t))))


def test_warm_up_is_no_spike() -> None:
    """A gradient's norm that rises tenfold with the rate and falls after; a loss that drops."""
    t = np.arange(1, 1500)
    rng = np.random.default_rng(0)
    for warm in (20, 100, 400):
        rate = np.minimum(t / warm, np.sqrt(warm / t))
        gradient = (0.1 + rate) * np.exp(0.1 * rng.standard_normal(len(t)))
        loss = (3 + 6 * np.exp(-np.cumsum(rate) / 30)) * np.exp(0.02 * rng.standard_normal(len(t)))
        assert not found(gradient)
        assert not found(loss)


def test_a_level_that_stays_is_a_shift() -> None:
    curve = learning(1500, 0)
    curve[600:] *= 1.7
    events = found(spiked(curve, [1100], 3.0, 5.0))
    assert [(each.kind, each.began) for each in events] == [("shift", 601), ("spike", 1100)]
    assert events[0].ended == 601 + SpikeRule().longest


def test_one_odd_batch_is_nothing() -> None:
    curve = learning(600, 0)
    curve[400] *= 3
    assert not found(curve)
    assert [each.began for each in found(curve, SpikeRule(persistence=1))] == [401]


def test_a_loss_without_a_number_is_an_excursion_at_once() -> None:
    curve = learning(600, 0)
    curve[400] = math.nan
    (event,) = found(curve)
    assert (event.began, event.height) == (401, math.inf)


def test_units_do_not_matter() -> None:
    curve = spiked(learning(1500, 3), [400, 900], 2.0, 8.0)
    plain, scaled = found(curve), found(4096.0 * curve)
    assert [(e.began, e.ended) for e in plain] == [(e.began, e.ended) for e in scaled]


def test_constants_and_their_least_digit_are_nothing() -> None:
    assert not found(np.full(500, 2.5))
    curve = np.full(500, 2.5)
    curve[300:310] += 0.005
    assert not found(curve)
    assert not found(np.zeros(300))


def test_equals_a_plain_reading_of_the_rule() -> None:
    """Written again with NumPy, without sorted windows: on a curve of many excursions."""
    rng = np.random.default_rng(4)
    curve = np.exp(0.05 * rng.standard_t(2, 3000))
    curve = spiked(curve, list(range(200, 2400, 130)), 1.8, 6.0)
    curve[2500:] *= 2
    rule = SpikeRule(window=40, threshold=4.0, persistence=2, longest=60)
    events = [(each.kind, each.began, each.ended) for each in found(curve, rule)]
    assert events == plain_reading(np.log(curve), rule)
    assert len({kind for kind, _, _ in events}) == 2
    assert len(events) > 15


def plain_reading(x: Curve, rule: SpikeRule) -> list[tuple[str, int, int]]:
    level: list[float] = list(x[: rule.window // 2])
    events: list[tuple[str, int, int]] = []
    t = len(level)
    while t < len(x):
        recent = np.array(level[-rule.window :])
        median = np.median(recent)
        scale = max(1.4826 * float(np.median(np.abs(recent - median))), rule.least)
        far = x[t:] > median + rule.threshold * scale
        if not far[: rule.persistence].all():
            stop = int(np.argmin(far))  # the first that is not far
            level += x[t : t + stop + 1].tolist()
            t += stop + 1
            continue
        low = x[t:] < median + rule.threshold * scale / 2
        low[: rule.persistence] = False
        back = int(np.argmax(low)) if low.any() else len(x)
        if back <= rule.longest:
            events.append(("spike", t + 1, t + back + 1))
            level.append(float(x[t + back]))
            t += back + 1
        elif t + rule.longest < len(x):
            events.append(("shift", t + 1, t + rule.longest + 1))
            level = x[t : t + rule.longest + 1].tolist()
            t += rule.longest + 1
        else:
            break
    return events


def taken(step: int, loss: float, gradient: float) -> StepTaken:
    return StepTaken(step=step, loss=torch.tensor(loss), gradient_norm=torch.tensor(gradient))


def attached(records: RecordWriter, first: int) -> SpikeWatch:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SpikeWatch.attached(
        SpikeRule(window=20),
        Setting(model=model, optimizer=optimizer, records=records, ranks=ALONE, first=first),
    )


def told(path: Path, curves: tuple[Curve, Curve], first: int, last: int) -> SpikeWatch:
    """A run's records of its numbers and excursions, from step ``first`` to ``last``."""
    with RecordWriter(path) as records:
        records.truncate_after(first)
        watch = attached(records, first)
        for step in range(first + 1, last + 1):
            loss, gradient = (float(np.float32(curve[step - 1])) for curve in curves)
            watch(taken(step, loss, gradient))
            records.write(Record(step, "loss", loss, {"split": "train"}))
            records.write(Record(step, "gradient_norm_before_clipping", gradient))
    return watch


def test_a_resumed_run_records_each_excursion_once(tmp_path: Path) -> None:
    """Killed after any step and gone on from any earlier one, in the midst of excursions too."""
    curve = spiked(learning(140, 1), [50, 95], 3.0, 5.0)
    gradient = spiked(learning(140, 2, noise=0.2), [52], 9.0, 4.0)
    whole = told(tmp_path / "whole.jsonl", (curve, gradient), 0, 140)
    written = read_records(tmp_path / "whole.jsonl")
    spikes = written.filter(written["name"] == "spike")
    assert spikes.select("which", "began").rows() == [
        ("gradient_norm", "52"),
        ("loss", "50"),
        ("loss", "95"),
    ]
    for first, killed in [(0, 60), (40, 60), (51, 70), (53, 58), (70, 99), (96, 97), (120, 130)]:
        path = tmp_path / f"{first}-{killed}.jsonl"
        told(path, (curve, gradient), 0, killed)
        again = told(path, (curve, gradient), first, 140)
        assert read_records(path).equals(written)
        assert again.found == whole.found


def test_overflows_of_half_precision_are_no_excursions() -> None:
    for scaled, expected in ((True, {}), (False, {"gradient_norm": 61})):
        watch = SpikeWatch(SpikeRule(), scaled=scaled)
        for step in range(1, 61):
            watch(taken(step, 3.0, 1.0))
        watch(taken(61, 3.0, math.inf))
        assert watch.began == expected


def test_what_was_fetched_late_is_recorded_after_resuming(tmp_path: Path) -> None:
    """On an accelerator numbers wait: an excursion may end before a checkpoint, and be told after.

    A run killed between the two takes it from its records.
    """
    curve = spiked(learning(140, 1), [50], 3.0, 5.0)
    path = tmp_path / "records.jsonl"
    whole = told(path, (curve, curve), 0, 140)
    lines = [line for line in path.read_text().splitlines() if '"name": "spike"' not in line]
    path.write_text("\n".join(lines) + "\n")
    with RecordWriter(path) as records:
        records.truncate_after(100)
        again = attached(records, 100)
    assert again.found == whole.found
    frame = read_records(path)
    written = frame.filter(frame["name"] == "spike")
    assert written["step"].to_list() == [each.ended for each in whole.found]
    assert len(written) == 2
