"""What rounding to few digits adds to a step, and the step without it.

An element stored on a grid of spacing u (bf16: 2^(e−7) at exponent e) reads Q(x). If its true step
is d and x lies anywhere between grid points, E (Q(x + d) − Q(x))² = d² + u² f(1 − f), f being the
fractional part of |d|/u: u²/6 more for long steps, and u|d| in all for steps below u. With d normal
of variance σ², and the tensor's exponents counted, ‖δ‖² as stored has one root σ².
If only one of two checkpoints is rounded, E = d² + u²/12.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float = npt.NDArray[np.float64]

DIGITS = {
    torch.bfloat16: 7,
    torch.float16: 10,
    torch.float8_e4m3fn: 3,
    torch.float8_e4m3fnuz: 3,
    torch.float8_e5m2: 2,
    torch.float8_e5m2fnuz: 2,
}
"""Binary digits after the leading one."""

LEAST = {
    torch.bfloat16: 2.0**-133,
    torch.float16: 2.0**-24,
    torch.float8_e4m3fn: 2.0**-9,
    torch.float8_e4m3fnuz: 2.0**-10,
    torch.float8_e5m2: 2.0**-16,
    torch.float8_e5m2fnuz: 2.0**-17,
}
"""Spacing of the least numbers, below which no exponent makes the grid finer."""

EXPONENTS = np.arange(-48, 24)
_SAMPLE = 8192  # elements of a chunk whose exponents are counted


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How one tensor's elements lie at one checkpoint: digits kept (None: enough), exponents."""

    digits: int | None
    counts: Float
    """Elements by exponent, at ``EXPONENTS``; zeros are in none."""
    least: float = 0.0
    """The finest spacing."""

    @property
    def spacing(self) -> Float:
        """u by exponent."""
        assert self.digits is not None
        return np.maximum(np.exp2(EXPONENTS.astype(np.float64) - self.digits), self.least)


def exponent_counts(chunk: Tensor) -> Float:
    """Elements of the chunk by ⌊log₂|x|⌋, from a sample of them."""
    sample = chunk[:: max(1, chunk.numel() // _SAMPLE)].float()
    exponents = torch.frexp(sample[sample != 0]).exponent.numpy().astype(np.int64) - 1
    places = np.clip(exponents - EXPONENTS[0], 0, len(EXPONENTS) - 1)
    counts = np.bincount(places, minlength=len(EXPONENTS)).astype(np.float64)
    return counts * (chunk.numel() / max(1, sample.numel()))


def is_coarse(samples: Sequence[Tensor]) -> bool:
    """Whether float32 samples hold bf16's digits only: weights that were rounded, then widened."""
    bits = torch.cat([each for each in samples if each.dtype == torch.float32] or [torch.empty(0)])
    whole = bits.contiguous().view(torch.int32)
    return whole.unique().numel() > 256 and bool((whole & 0xFFFF == 0).all())


def without_rounding(stored: float, before: Grid, after: Grid) -> float:
    """‖δ‖² of one tensor less what rounding added, from ‖δ‖² as stored."""
    if before.digits is None and after.digits is None:
        return stored
    if before.digits != after.digits:
        noise = sum(
            float(np.sum(grid.counts * grid.spacing**2)) / 12
            for grid in (before, after)
            if grid.digits is not None
        )
        return max(stored - noise, 0.0)
    return _root(stored, before)


def _root(stored: float, grid: Grid) -> float:
    """‖δ‖² whose expectation after rounding is ``stored``, by bisection on log σ."""
    total = float(np.sum(grid.counts))
    if stored <= 0 or total == 0:
        return stored
    high = np.sqrt(stored / total)
    low = high * 1e-12
    for _ in range(60):
        middle = np.sqrt(low * high)
        if _expected(float(middle), grid) > stored:
            high = middle
        else:
            low = middle
    return float(high**2) * total


def _expected(sigma: float, grid: Grid) -> float:
    u = grid.spacing
    return float(np.sum(grid.counts * (sigma**2 + u**2 * _jumps(sigma / u))))


def _jumps(x: Float) -> Float:
    """E f(1 − f) for the fractional part f of a normal number of deviation x.

    1/6 − Σ_k exp(−2π²k²x²)/(π²k²); below 0.15, where |d| < u all but surely, x√(2/π) − x².
    """
    k = np.arange(1, 13)[:, None]
    series = 1 / 6 - np.sum(np.exp(-2 * (np.pi * k * x) ** 2) / (np.pi * k) ** 2, axis=0)
    return np.where(x < 0.15, x * np.sqrt(2 / np.pi) - x**2, series)
