"""Misaligned or aligned growth: which of the two accounts for a norm, in numbers.

Misaligned, θ·δ = 0: ‖θ_t‖² = ‖θ_0‖² + Σ‖δ‖², [MRGSS21] §5.4, (E.2).
Aligned, θ·δ = ‖θ‖‖δ‖: ‖θ_t‖ = ‖θ_0‖ + Σ‖δ‖, §5.3.

Both take the measured steps and have nothing to fit. With the learning rates η also the forms that
need no steps: ‖θ_t‖² = a + bΣη², and d‖θ‖ ∝ η‖θ‖, log‖θ_t‖ = a + bΣη.

What lies between two checkpoints is not seen: 'misaligned' is said of a spacing. Alignment's share
of growth, from Δ‖θ‖² = 2θ·δ + ‖δ‖², is therefore given at every spacing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orderone.core.errors import ConfigError
from orderone.trajectory.geometry import Neighbours, Pairs

Float = npt.NDArray[np.float64]

_ALIKE = 1.5  # errors whose ratio is below this do not tell the two apart


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Relative errors (root mean square over the series) of the two accounts of one group."""

    misaligned: float
    aligned: float
    shares: Mapping[int, float]
    """Alignment's share of growth by spacing, in checkpoints."""
    scheduled: Mapping[str, float]
    """r² of the two forms that take learning rates in place of steps."""

    @property
    def verdict(self) -> str:
        """'misaligned', 'aligned' or 'undecided'."""
        if not np.isfinite(self.misaligned) or not np.isfinite(self.aligned):
            return "undecided"
        low, high = sorted((self.misaligned, self.aligned))
        if high < _ALIKE * low or high == 0:
            return "undecided"
        return "misaligned" if self.misaligned < self.aligned else "aligned"

    @property
    def sentence(self) -> str:
        if not np.isfinite(self.misaligned):
            return "the steps are not known, so neither account of growth can be tried"
        errors = (
            f"‖θ_0‖² + Σ‖δ‖² is off by {self.misaligned:.1%}, aligned growth by {self.aligned:.1%}"
        )
        share = self.shares.get(1, float("nan"))
        carried = f"alignment carries {share:.0%} of the growth at this spacing"
        which = {
            "misaligned": "misaligned growth fits better",
            "aligned": "aligned growth fits better",
            "undecided": "the data can't tell aligned from misaligned growth",
        }[self.verdict]
        return f"{which} ({errors}); {carried}" if np.isfinite(share) else f"{which} ({errors})"

    def as_json(self) -> dict[str, Any]:
        return {
            "misaligned_error": self.misaligned,
            "aligned_error": self.aligned,
            "verdict": self.verdict,
            "alignment_share": {str(lag): share for lag, share in self.shares.items()},
            "scheduled_r2": dict(self.scheduled),
            "sentence": self.sentence,
        }


def dynamics(
    steps: npt.NDArray[np.int64],
    group: Neighbours,
    pairs: Pairs | None = None,
    rates: Mapping[int, float] | None = None,
) -> Dynamics:
    """The accounts of one group; spacings beyond the next checkpoint need all pairs."""
    norm, step = group.norm, group.step_norm
    walked = np.concatenate([[0.0], np.cumsum(step**2)])
    straight = np.concatenate([[0.0], np.cumsum(step)])
    lags = [1] if pairs is None else _lags(len(norm))
    shares = {lag: group.share if pairs is None else pairs.share(lag) for lag in lags}
    return Dynamics(
        misaligned=_error(np.sqrt(norm[0] ** 2 + walked), norm),
        aligned=_error(norm[0] + straight, norm),
        shares=shares,
        scheduled={} if rates is None else _scheduled(steps, norm, rates),
    )


def _lags(count: int) -> list[int]:
    """1, 2, 4, … as long as the series holds two such spacings, and the whole of it."""
    lags = [2**k for k in range(count.bit_length()) if 2 ** (k + 1) < count]
    return sorted({1, *lags, max(1, count - 1)})


def _error(told: Float, norm: Float) -> float:
    """Root mean square of told/‖θ‖ − 1 after the first point, from which both accounts start."""
    later = np.flatnonzero(norm > 0)
    later = later[later > 0]
    return float(np.sqrt(np.mean((told[later] / norm[later] - 1) ** 2))) if len(later) else np.nan


def check_rates(rates: Mapping[int, float], *, first: int) -> None:
    """ConfigError where they are no schedule of a series that begins at step ``first``."""
    if not rates or min(rates) > first:
        raise ConfigError(
            "learning rates that begin after the first checkpoint",
            expected=f"a rate from step {first} on",
            do="complete the schedule",
        )
    eta = np.array(list(rates.values()))
    if not (np.isfinite(eta) & (eta >= 0)).all():
        raise ConfigError(
            "a learning rate that is negative or no number",
            expected="numbers from 0 on",
            do="correct the schedule",
        )


def _scheduled(
    steps: npt.NDArray[np.int64], norm: Float, rates: Mapping[int, float]
) -> dict[str, float]:
    """r² of ‖θ‖² on Σ η² and of log‖θ‖ on Σ η; rates hold from their step to the next."""
    check_rates(rates, first=int(steps[0]))
    known = np.array(sorted(rates), dtype=np.int64)
    eta = np.array([rates[int(k)] for k in known])
    there = norm > 0  # of nothing there is no logarithm
    if not there.any():
        return {}
    squared, summed = _added(eta**2, known, steps), _added(eta, known, steps)
    norm = norm[there]
    return {
        "misaligned": _explained(squared[there], norm**2, norm, _root),
        "aligned": _explained(summed[there], np.log(norm), norm, np.exp),
    }


def _added(values: Float, known: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> Float:
    """Σ of what holds from each known step on, over the updates from the first checkpoint on."""
    whole = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(known))])
    at = np.searchsorted(known, steps, "right") - 1
    sums = whole[at] + values[at] * (steps - known[at])
    return sums - sums[0]


def _root(square: Float) -> Float:
    return np.sqrt(np.maximum(square, 0.0))


def _explained(x: Float, y: Float, norm: Float, back: Callable[[Float], Float]) -> float:
    """r², on the norm itself, of y = a + bx; ``back`` makes a norm of y."""
    design = np.stack([np.ones_like(x), x / x[-1] if x[-1] else x], axis=1)
    told = back(design @ np.linalg.lstsq(design, y, rcond=None)[0])
    spread = float(np.sum((norm - norm.mean()) ** 2))
    return 1 - float(np.sum((norm - told) ** 2)) / spread if spread else 1.0
