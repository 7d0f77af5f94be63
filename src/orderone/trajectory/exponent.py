"""The interval of p in a·t^p + b, whatever memory the residuals have.

Near p's value of least squares the law is linear in three: a·t^p, 1 and ∂/∂p = a·t^p·log t. For
each correlation φ the generalised least squares' δp is distributed as Student's t about its
estimate; the φ are weighed by the restricted likelihood (of what the three columns leave free),

    RSS^(−(n−3)/2) |V|^(−1/2) |XᵀV⁻¹X|^(−1/2),

and the interval holds the middle 95 % of the mixture. The likelihood itself would not do: the three
columns take up slow residuals, so it finds too short a memory and an interval of half the length.
"""

import math
from typing import cast

import numpy as np
import numpy.typing as npt

from orderone.trajectory.residuals import RESOLUTION, foretold, fresh, whitened

Float = npt.NDArray[np.float64]

_TAIL = 0.025


def exponent_interval(
    t: Float, y: Float, power: float, factor: float, limits: tuple[float, float]
) -> tuple[float, float]:
    """95 % of p, least squares' ``power`` among them; infinite from ``limits`` on."""
    logs = np.log(np.where(t > 0, t, 1.0))  # t^p log t is 0 at 0
    raised = np.where(t > 0, np.exp(power * logs), 0.0)
    columns = np.stack([raised, np.ones_like(t), factor * raised * logs, y], axis=1)
    if not np.any(columns[:, 2]):
        return float("-inf"), float("inf")
    floor = len(t) * (RESOLUTION * float(np.mean(np.abs(y)))) ** 2
    estimates = np.array([_estimate(columns, rho, floor) for rho in foretold(t)])
    estimates = estimates[np.isfinite(estimates).all(axis=1)]
    shift, error, likely = estimates.T
    weights = np.exp(likely - likely.max())
    low, high = (
        power + _quantile(q, shift, error, weights / weights.sum(), len(t) - 3)
        for q in (_TAIL, 1 - _TAIL)
    )
    return (
        min(low, power) if low > limits[0] else float("-inf"),
        max(high, power) if high < limits[1] else float("inf"),
    )


def _estimate(columns: Float, rho: Float, floor: float) -> tuple[float, float, float]:
    """δp, its standard error, and the logarithm of the restricted likelihood."""
    spare = len(columns) - 3
    # numpy's stub also names the result of mode='complete'.
    triangle = cast("Float", np.linalg.qr(whitened(columns, rho), mode="r"))
    sizes = np.abs(np.diagonal(triangle))
    rest = float(triangle[3, 3]) ** 2 + floor
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = triangle[2, 3] / triangle[2, 2]
        error = math.sqrt(rest / spare) / sizes[2]
        likely = (
            -spare / 2 * math.log(rest) - np.sum(np.log(fresh(rho))) - np.sum(np.log(sizes[:3]))
        )
    return float(shift), float(error), float(likely)


def _quantile(q: float, shift: Float, error: Float, weights: Float, freedom: int) -> float:
    """Where the mixture's distribution function is q."""
    low, high = float(np.min(shift - 200 * error)), float(np.max(shift + 200 * error))
    for _ in range(80):
        middle = (low + high) / 2
        below = weights @ [_student(x, freedom) for x in (middle - shift) / error]
        low, high = (middle, high) if below < q else (low, middle)
    return (low + high) / 2


def _student(x: float, freedom: int) -> float:
    """Student's distribution function, by Wallace's (1959) normal number: right to 0.001."""
    normal = (
        math.sqrt(freedom * math.log1p(x * x / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    )
    return 0.5 * (1 + math.erf(math.copysign(normal, x) / math.sqrt(2)))
