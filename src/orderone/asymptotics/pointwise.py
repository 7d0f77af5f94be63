"""Functions of one number: what each becomes above, at and below degree 0.

A smooth σ saturates above degree 0, is itself at 0, and is its Taylor polynomial below.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.asymptotics.term import NoLimitError, Reason, Term, also, power, reciprocal, scaled

aten: Any = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A function by its behaviour far out and around 0."""

    far: Callable[[Tensor], Tensor]
    """What leads for large arguments: of degree ``far_power`` times the argument's."""
    far_power: int
    near: float
    """The first Taylor coefficient that is not 0, at ``near_power``."""
    near_power: int


def _rectified(near: float, near_power: int = 1) -> Shape:
    return Shape(far=functional.relu, far_power=1, near=near, near_power=near_power)


def _stepped(near: float, near_power: int, *, low: float) -> Shape:
    def step(x: Tensor) -> Tensor:
        return (1 - low) / 2 * x.sign() + (1 + low) / 2

    return Shape(far=step, far_power=0, near=near, near_power=near_power)


_SHAPES: dict[Any, Shape] = {
    aten.gelu: _rectified(0.5),
    aten.silu: _rectified(0.5),
    aten.mish: _rectified(0.6),
    aten.softplus: _rectified(0.6931471805599453, 0),
    aten.hardswish: _rectified(0.5),
    aten.elu: _rectified(1.0),
    aten.sigmoid: _stepped(0.5, 0, low=0.0),
    aten.hardsigmoid: _stepped(0.5, 0, low=0.0),
    aten.tanh: _stepped(1.0, 1, low=-1.0),
    aten.erf: _stepped(1.1283791670955126, 1, low=-1.0),
}


def _smooth(packet: Any, shape: Shape) -> Callable[..., Term]:
    def rule(x: Term, *args: Any, **kwargs: Any) -> Term:
        if x.degree == 0:
            return Term(lead=packet(x.lead, *args, **kwargs), dropped=x.dropped)
        if args and packet in (aten.softplus, aten.elu):
            raise _settings(packet)
        if x.degree < 0:
            near = scaled(power(x, shape.near_power), shape.near)
            return replace(near, dropped=also(x.dropped, "lower degree"))
        lost: Reason = "lower degree" if packet is aten.elu else "saturation"
        return Term(
            lead=shape.far(x.lead),
            degree=x.degree * shape.far_power,
            dropped=_far_dropped(x, shape, lost),
        )

    return rule


def _far_dropped(x: Term, shape: Shape, lost: Reason) -> frozenset[Reason]:
    """A sign forgets what is beside the leading coefficient, unless that is 0."""
    if shape.far_power or bool((x.lead == 0).any()):
        return also(x.dropped, lost)
    return also(x.dropped - {"constant", "lower degree"}, lost)


def _settings(packet: Any) -> NoLimitError:
    return NoLimitError(
        f"{packet} with settings of its own",
        expected="its default settings",
        do="use the defaults, or leave the parameters before it unscaled",
    )


def _homogeneous(packet: Any) -> Callable[..., Term]:
    """σ(c x) = c σ(x) for c > 0: nothing is lost at any degree."""

    def rule(x: Term, *args: Any, **kwargs: Any) -> Term:
        return Term(lead=packet(x.lead, *args, **kwargs), degree=x.degree, dropped=x.dropped)

    return rule


def _exp(x: Term) -> Term:
    """e^x: 0, 1 or without a limit as the leading coefficient is negative, 0 or positive."""
    if x.degree == 0:
        return Term(lead=x.lead.exp(), dropped=x.dropped)
    if x.degree > 0 and bool((x.lead > 0).any()):
        raise NoLimitError(
            f"an exponential of numbers that grow with degree {x.degree}",
            expected="numbers that do not grow towards +∞",
            do="use softmax, which subtracts the largest, or leave some parameters unscaled",
        )
    one = x.lead == 0 if x.degree > 0 else torch.ones_like(x.lead, dtype=torch.bool)
    certain = x.degree < 0 or x.zeros_are_certain or not bool(one.any())
    dropped: frozenset[Reason] = also(x.dropped, "saturation" if certain else "tie")
    return Term(lead=one.to(x.lead.dtype), dropped=dropped)


def _at_zero_only(packet: Any, near: Callable[[Term], Term] | None) -> Callable[..., Term]:
    """Functions without a limit above degree 0."""

    def rule(x: Term) -> Term:
        if x.degree == 0:
            return Term(lead=packet(x.lead), dropped=x.dropped)
        if x.degree < 0 and near is not None:
            return replace(near(x), dropped=also(x.dropped, "lower degree"))
        raise NoLimitError(
            f"{packet} of a value of degree {x.degree}",
            expected="a value of degree 0, since it has no limit else",
            do="leave the parameters before it unscaled",
        )

    return rule


def _one(x: Term) -> Term:
    return Term(lead=torch.ones_like(x.lead))


def _itself(x: Term) -> Term:
    return x


def _sign(x: Term) -> Term:
    return Term(lead=x.lead.sign(), dropped=x.dropped)


def _pow(x: Any, exponent: Any) -> Term:
    if not isinstance(x, Term) or not isinstance(exponent, int | float):
        raise NoLimitError(
            "a power whose exponent depends on the parameters or is a tensor",
            expected="a number as the exponent",
            do="write the power with a number",
        )
    return power(x, float(exponent))


def _power_of(exponent: float) -> Callable[..., Term]:
    def rule(x: Term) -> Term:
        return power(x, exponent)

    return rule


RULES: dict[Any, Callable[..., Any]] = {
    **{packet: _smooth(packet, shape) for packet, shape in _SHAPES.items()},
    **{each: _homogeneous(each) for each in (aten.relu, aten.leaky_relu, aten.abs)},
    aten.exp: _exp,
    aten.log: _at_zero_only(aten.log, None),
    aten.sin: _at_zero_only(aten.sin, _itself),
    aten.cos: _at_zero_only(aten.cos, _one),
    aten.sign: _sign,
    aten.sgn: _sign,
    aten.pow: _pow,
    aten.square: _power_of(2.0),
    aten.sqrt: _power_of(0.5),
    aten.rsqrt: _power_of(-0.5),
    aten.reciprocal: reciprocal,
}
