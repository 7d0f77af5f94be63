"""Functions of one number: what each becomes above, at and below degree 0.

A smooth σ saturates above degree 0, is itself at 0, and is its Taylor polynomial below.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.asymptotics.algebra import chosen, power, reciprocal, scaled
from orderone.asymptotics.term import NoLimitError, Reason, Term, also, beside, sign_of

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
    aten.softplus: _rectified(math.log(2), 0),
    aten.hardswish: _rectified(0.5),
    aten.sigmoid: _stepped(0.5, 0, low=0.0),
    aten.hardsigmoid: _stepped(0.5, 0, low=0.0),
    aten.tanh: _stepped(1.0, 1, low=-1.0),
    aten.erf: _stepped(1.1283791670955126, 1, low=-1.0),
}


def _smooth(packet: Any, shape: Shape) -> Callable[..., Term]:
    def rule(x: Term, *args: Any, **kwargs: Any) -> Term:
        if x.degree == 0 or (x.is_nothing and shape.near_power == 0):
            return Term(lead=packet(x.lead, *args, **kwargs), dropped=x.dropped)
        if packet is aten.softplus and tuple(args[:1]) not in ((), (1,)):
            raise _settings(packet)
        if x.degree < 0:
            near = scaled(power(x, shape.near_power), shape.near)
            return replace(near, dropped=also(x.dropped, "lower degree"))
        if not shape.far_power:
            return _step(x, shape, rule)
        return Term(
            lead=shape.far(x.lead),
            degree=x.degree,
            dropped=also(x.dropped, _lost(x, packet)),
        )

    return rule


def _lost(x: Term, packet: Any) -> Reason:
    """Softplus leaves ln 2 of what is 0."""
    beside_zero = packet is aten.softplus and not bool(x.lead.all())
    return "lower degree" if beside_zero else "saturation"


def _step(x: Term, shape: Shape, itself: Callable[[Term], Term]) -> Term:
    """A sign; where the leading coefficient is 0, the function of what stands beside it."""
    dropped, lead = _far_dropped(x, shape, "saturation"), shape.far(x.lead)
    undecided = x.lead == 0
    if x.dropped <= {"constant", "saturation"} or not bool(undecided.any()):
        return Term(lead=lead, dropped=dropped)
    rest = itself(_only(beside(x, undecided), undecided))
    below = rest.lead if not rest.degree else torch.zeros_like(lead)
    lead = torch.where(undecided, below, lead)
    return Term(lead=lead, dropped=also(dropped | rest.dropped, "lower degree"))


def _only(x: Term, wanted: Tensor) -> Term:
    """With −1, which no function here refuses, where nobody asks."""
    tail = None if x.tail is None else replace(x.tail, lead=x.tail.lead.expand(x.lead.shape))
    return replace(x, lead=torch.where(wanted, x.lead, -1.0), tail=tail)


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


def _elu(x: Term, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Term:
    """s x above 0 and s α (e^{b x} − 1) below: near 0 a line of two slopes, far out s relu(x)."""
    if x.degree == 0:
        return Term(lead=aten.elu(x.lead, alpha, scale, input_scale), dropped=x.dropped)
    if x.degree > 0 and bool(x.lead.all()):
        bottom = Term(lead=torch.full_like(x.lead, -scale * alpha), dropped=x.dropped)
        made = chosen(x.lead > 0, scaled(x, scale), bottom)
        return replace(made, dropped=also(made.dropped, "saturation"))
    below = scale * alpha * input_scale if x.degree < 0 else 0.0
    lead = torch.where(x.lead > 0, x.lead * scale, x.lead * below)
    return Term(lead=lead, degree=x.degree, dropped=also(x.dropped, "lower degree"))


def _celu(x: Term, alpha: float = 1) -> Term:
    return _elu(x, alpha, 1, 1 / alpha)


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
    if x.degree < 0:
        return Term(lead=torch.ones_like(x.lead), dropped=also(x.dropped, "lower degree"))
    one = x.lead == 0
    lead = one.to(x.lead.dtype)
    if x.dropped <= {"saturation"} or not bool(one.any()):
        return Term(lead=lead, dropped=also(x.dropped, "saturation"))
    if not x.followed or x.tail is None:
        return Term(lead=lead, dropped=also(x.dropped, "saturation", "tie"))
    rest = _exp(_only(beside(x, one), one))
    dropped = also(x.dropped | rest.dropped, "saturation", "lower degree")
    return Term(lead=torch.where(one, rest.lead, 0.0), dropped=dropped)


def _log(x: Term) -> Term:
    """Of degree 0 only, and not of what vanishes: how fast its logarithm grows is unknown."""
    made = _at_zero_only(aten.log, None)(x)
    if not x.dropped or bool(x.lead.all()):
        return made
    raise NoLimitError(
        f"a logarithm of {int((x.lead == 0).sum())} numbers that vanish as c grows",
        expected="numbers with a limit other than 0",
        do="use log_softmax, or leave the parameters before it unscaled",
    )


def _at_zero_only(packet: Any, near: Callable[[Term], Term] | None) -> Callable[..., Term]:
    """Functions without a limit above degree 0."""

    def rule(x: Term) -> Term:
        if x.degree == 0 or (x.is_nothing and near is not None):
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
    return Term(lead=sign_of(x), dropped=x.dropped)


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
    aten.elu: _elu,
    aten.celu: _celu,
    aten.exp: _exp,
    aten.log1p: _at_zero_only(aten.log1p, _itself),
    aten.expm1: _at_zero_only(aten.expm1, _itself),
    aten.log: _log,
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
