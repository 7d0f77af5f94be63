"""Residuals of a norm with a memory: an Ornstein–Uhlenbeck process seen at the checkpoints' steps.

Two residuals at steps s < t have correlation φ^((t − s)/g), g being the median spacing. A column of
a regression is made white by taking off what the point before foretells.
"""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

CORRELATIONS = np.array([0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99, 0.997])
"""φ, each tried."""

RESOLUTION = 1e-7
"""Of a norm: residuals below it say nothing."""


def foretold(t: Float) -> Float:
    """Correlation of each point with the one before, a row for each of ``CORRELATIONS``."""
    gaps = np.diff(t)
    return CORRELATIONS[:, None] ** (gaps / np.median(gaps))


def fresh(rho: Float) -> Float:
    """Deviation of what is new at each point, where that of a residual is 1."""
    return np.sqrt(np.maximum(1 - rho**2, 1e-12))


def whitened(columns: Float, rho: Float) -> Float:
    """The columns (…, points, columns) less what the point before foretells."""
    white = columns.copy()
    white[..., 1:, :] -= rho[:, None] * columns[..., :-1, :]
    white[..., 1:, :] /= fresh(rho)[:, None]
    return white
