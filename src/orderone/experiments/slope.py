"""Power laws fitted over widths: log–log slopes with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orderone.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its confidence interval."""

    value: float
    low: float
    high: float


def loglog_slope(
    x: Sequence[float], y: Sequence[float], *, confidence: float = 0.95
) -> Estimate | None:
    """Least squares of ln y on ln x; the interval is Student's with len(x) − 2 degrees of freedom.

    Every (width, seed) is a point of its own: draws at different widths are independent. None where
    some y is zero (what never moves has no slope); NaN where some y is not finite.
    """
    if len(set(x)) < 2 or len(x) < 3 or min(x) <= 0:
        raise ConfigError(
            f"{len(x)} points at {len(set(x))} widths",
            expected="at least 3 points at 2 positive widths",
            do="give more widths or seeds",
        )
    if not all(map(math.isfinite, y)):
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    if min(y) <= 0:
        return None
    slope = exponent(x, y)
    u, v = _centred(x), _centred(y)
    residual = math.fsum((b - slope * a) ** 2 for a, b in zip(u, v, strict=True))
    spread = math.fsum(a * a for a in u)
    freedom = len(x) - 2
    reach = student_quantile(0.5 + confidence / 2, freedom)
    half = reach * math.sqrt(residual / freedom / spread)
    return Estimate(value=slope, low=slope - half, high=slope + half)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Least squares slope of ln y on ln x."""
    u, v = _centred(x), _centred(y)
    return math.fsum(a * b for a, b in zip(u, v, strict=True)) / math.fsum(a * a for a in u)


def _centred(x: Sequence[float]) -> list[float]:
    logs = [math.log(each) for each in x]
    mean = math.fsum(logs) / len(logs)
    return [each - mean for each in logs]


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The mean of independent values and its Student interval; infinite for a single one."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    freedom = len(values) - 1
    variance = math.fsum((value - mean) ** 2 for value in values) / freedom
    reach = student_quantile(0.5 + confidence / 2, freedom)
    half = reach * math.sqrt(variance / len(values))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def student_quantile(probability: float, freedom: int) -> float:
    """t with P(T < t) = probability ≥ ½, by bisection of the exact distribution."""
    low, high = 0.0, 2.0
    while student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, freedom: int) -> float:
    """P(T < t) of Student's distribution with a whole number of degrees of freedom.

    Abramowitz and Stegun 26.7.3 and 26.7.4, with θ = arctan(t / √ν): finite sums of powers of cos.
    """
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    if freedom == 1:
        return 0.5 + theta / math.pi
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    central = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return 0.5 + central / 2
