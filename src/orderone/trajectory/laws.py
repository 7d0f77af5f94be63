"""Laws of growth, and the likelihood of a norm series under each when its residuals are correlated.

Every law is linear in two or three coefficients once one shape parameter q is fixed:

    sqrt          a√t + b, and from the start √(‖θ_0‖² + ct): misaligned dynamics, [MRGSS21] §5.4
    linear        at + b
    fourth-root   a t^¼ + b
    log           a log t + b
    power         a t^p + b
    exp-sqrt      a exp(c√t): aligned dynamics at a rate 1/√t, [MRGSS21] §5.3
    turns         two lines of opposite slope, or a parabola over its top: no law of growth

Residuals of a norm wander: each is close to the one before. Their correlation φ is fitted too
(``residuals``), or r² near 1 would make every law certain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from orderone.trajectory.exponent import exponent_interval
from orderone.trajectory.residuals import CORRELATIONS, RESOLUTION, foretold, fresh, whitened

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Law:
    """Columns that a law combines, given t ∈ (0, 1] and its shape q, and the shapes to try."""

    name: str
    columns: Callable[[Float, float], Float]
    shapes: tuple[float, ...] = (0.0,)
    admits: Callable[[Float], npt.NDArray[np.bool_]] = lambda c: np.ones(c.shape[:-1], dtype=bool)

    @property
    def parameters(self) -> int:
        return self.columns(np.ones(1), self.shapes[0]).shape[1] + (len(self.shapes) > 1)


def _with_constant(power: float) -> Callable[[Float, float], Float]:
    return lambda t, _: np.stack([t**power, np.ones_like(t)], axis=1)


def _hinge(t: Float, knot: float) -> Float:
    below, above = np.minimum(t - knot, 0.0), np.maximum(t - knot, 0.0)
    return np.stack([below, above, np.ones_like(t)], axis=1)


def _grid(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(x) for x in np.geomspace(low, high, count))


POWERS = tuple(
    float(p) for p in np.concatenate([np.arange(-2.0, 0, 0.1), np.arange(0.02, 4, 0.02)])
)
_RATES = tuple(
    float(c) for c in np.concatenate([-np.geomspace(8, 0.02, 40), np.geomspace(0.02, 12, 60)])
)
MISALIGNED = "sqrt from the start"
BEND = "turns gently"

LAWS = (
    Law(name="sqrt", columns=_with_constant(0.5)),
    Law(
        name=MISALIGNED,
        columns=lambda t, q: np.sqrt(t + q)[:, None],
        shapes=_grid(1e-4, 1e3, 90),
    ),
    Law(name="linear", columns=_with_constant(1.0)),
    Law(name="fourth-root", columns=_with_constant(0.25)),
    Law(
        name="log",
        columns=lambda t, _: np.stack([np.log(t), np.ones_like(t)], axis=1),
    ),
    Law(
        name="power",
        columns=lambda t, p: np.stack([t**p, np.ones_like(t)], axis=1),
        shapes=POWERS,
    ),
    Law(
        name="exp-sqrt",
        columns=lambda t, c: np.exp(c * (np.sqrt(t) - 1))[:, None],
        shapes=_RATES,
    ),
    Law(
        name="turns",
        columns=_hinge,
        shapes=tuple(float(k) for k in np.linspace(0.08, 0.92, 43)),
        admits=lambda coefficients: coefficients[..., 0] * coefficients[..., 1] < 0,
    ),
    Law(
        name=BEND,
        columns=lambda t, k: np.stack([(t - k) ** 2, np.ones_like(t)], axis=1),
        shapes=tuple(float(k) for k in np.linspace(0.2, 0.8, 31)),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One law's best fit: by least squares (shape, coefficients, r²), and its likelihood."""

    law: str
    shape: float
    coefficients: tuple[float, ...]
    last: float
    """The step that is t = 1."""
    r2: float
    deviance: float
    """−2 log likelihood at the best shape and correlation."""
    correlation: float
    parameters: int
    interval: tuple[float, float] | None = None
    """Of p: 95 %."""


def fit(law: Law, t: Float, y: Float) -> Fit | None:
    """The law on a series; None where it does not apply (log of 0, a turn that is none)."""
    scaled = t / t[-1]
    shapes = np.array(law.shapes)
    if scaled[0] <= 0:
        shapes = shapes[shapes > 0] if law.name == "power" else shapes
        if law.name == "log":
            return None
    squares, deviances = _surface(law, scaled, y, shapes)
    if not np.isfinite(deviances).any():
        return None
    profile = deviances.min(axis=1)
    best = int(np.argmin(profile))
    finer = _between(shapes, best)
    _, at_finer = _surface(law, scaled, y, finer)
    correlation = CORRELATIONS[int(np.argmin(at_finer.min(axis=0)))]
    shape = _refined(law, scaled, y, shapes, int(np.argmin(squares)))
    columns = law.columns(scaled, shape)
    coefficients = np.linalg.lstsq(columns, y, rcond=None)[0]
    spread = float(np.sum((y - y.mean()) ** 2))
    return Fit(
        law=law.name,
        shape=shape,
        coefficients=tuple(float(c) for c in coefficients),
        last=float(t[-1]),
        r2=1 - float(np.sum((y - columns @ coefficients) ** 2)) / spread if spread else 1.0,
        deviance=float(at_finer.min()),
        correlation=float(correlation),
        parameters=law.parameters + 2,
        interval=_interval(scaled, y, shape, coefficients[0]) if law.name == "power" else None,
    )


def told(fit: Fit, t: Float) -> Float:
    """The norm at steps t as the fit has it."""
    (law,) = [each for each in LAWS if each.name == fit.law]
    return law.columns(t / fit.last, fit.shape) @ np.array(fit.coefficients)


def _surface(law: Law, t: Float, y: Float, shapes: Float) -> tuple[Float, Float]:
    """Least squares by shape, and −2 log likelihood by shape and correlation, each at its best."""
    columns = np.stack([law.columns(t, float(shape)) for shape in shapes])
    both = np.concatenate([columns, np.broadcast_to(y[:, None], (*columns.shape[:2], 1))], axis=2)
    triangle = _triangle(both)
    # X|y = QR: the residual's length is the last diagonal entry, the coefficients are R⁻¹ of y's.
    squares = triangle[:, -1, -1] ** 2
    design = triangle[:, :-1, :-1]
    sizes = np.abs(np.diagonal(design, axis1=1, axis2=2))
    singular = sizes.min(axis=1) <= 1e-12 * sizes.max(axis=1)  # a knot before all points
    design[singular] = np.eye(design.shape[1])
    coefficients = cast("Float", np.linalg.solve(design, triangle[:, :-1, -1:]))[..., 0]
    refused = singular | ~law.admits(coefficients)
    squares[refused] = np.inf
    deviances = _deviances(both, t, float(np.mean(np.abs(y))))
    deviances[refused] = np.inf
    return squares, deviances


def _triangle(columns: Float) -> Float:
    """R of the QR decomposition, one matrix a shape."""
    # numpy's stub also names the result of mode='complete'.
    return cast("Float", np.linalg.qr(columns, mode="r"))


def _deviances(both: Float, t: Float, size: float) -> Float:
    """−2 log likelihood by shape and correlation, the variance at its best."""
    n = len(t)
    rho = foretold(t)
    found = np.empty((len(both), len(rho)))
    for i in range(len(rho)):
        rest = _triangle(whitened(both, rho[i]))[:, -1, -1] ** 2
        found[:, i] = n * np.log(rest / n + (RESOLUTION * size) ** 2)
    return found + 2 * np.log(fresh(rho)).sum(axis=1)


def _between(shapes: Float, row: int, count: int = 21) -> Float:
    """Shapes between the neighbours of one."""
    if len(shapes) == 1:
        return shapes
    return np.linspace(shapes[max(0, row - 1)], shapes[min(len(shapes) - 1, row + 1)], count)


def _refined(law: Law, t: Float, y: Float, shapes: Float, row: int) -> float:
    """The shape of least squares, on ever finer grids around the first one's best."""
    if len(shapes) == 1:
        return float(shapes[0])
    for _ in range(4):
        shapes = _between(shapes, row)
        columns = np.stack([law.columns(t, float(shape)) for shape in shapes])
        both = np.concatenate(
            [columns, np.broadcast_to(y[:, None], (*columns.shape[:2], 1))], axis=2
        )
        row = int(np.argmin(np.abs(_triangle(both)[:, -1, -1])))
    return float(shapes[row])


def _interval(t: Float, y: Float, power: float, factor: float) -> tuple[float, float]:
    return exponent_interval(t, y, power, factor, (POWERS[0] if t[0] > 0 else 0.001, POWERS[-1]))
