"""Comparisons of two values as c → ∞, and what they decide: the larger, the smaller, bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.algebra import chosen, difference
from orderone.asymptotics.term import (
    NoLimitError,
    Reason,
    Term,
    also,
    beside,
    lowest,
    masked,
    sign_of,
    terms,
)

aten: Any = torch.ops.aten


def _larger(x: Any, y: Any) -> Term:
    x, y = terms(x, y)
    return _in_the_end(chosen(_difference(x, y) >= 0, x, y), x, y)


def _smaller(x: Any, y: Any) -> Term:
    x, y = terms(x, y)
    return _in_the_end(chosen(_difference(x, y) <= 0, x, y), x, y)


def _in_the_end(made: Term, x: Term, y: Term) -> Term:
    """Which of two degrees is larger is decided at some c, and not before."""
    return replace(made, dropped=made.dropped | undecided_by(x, y))


def undecided_by(x: Any, y: Any) -> frozenset[Reason]:
    """Why the order of two values may differ at some c from that in the limit."""
    x, y = terms(x, y)
    if x.degree == y.degree or x.is_nothing or y.is_nothing or bool(_hidden_in(x, y).all()):
        return x.dropped | y.dropped
    return also(x.dropped | y.dropped, "saturation")


def _difference(x: Term, y: Term) -> Tensor:
    """What has the sign of x − y where that decides what leads the larger or the smaller."""
    if x.degree == y.degree or x.is_nothing or y.is_nothing:
        return x.lead - y.lead
    larger = difference(x, y)
    try:
        return sign_of(larger)
    except NoLimitError:  # where it is unknown, both are of lower degree than the rest
        return larger.lead


def _clamp(x: Term, low: Any = None, high: Any = None) -> Term:
    """Bounds at the end of the dtype, which guard against overflow, bound nothing in the limit."""
    low, high = (None if _is_endless(each, x.lead) else each for each in (low, high))
    if isinstance(low, int | float) and isinstance(high, int | float) and x.degree > 0:
        return _between(x, low, high)
    if low is not None:
        x = _larger(x, low)
    return x if high is None else _smaller(x, high)


def _between(x: Term, low: float, high: float) -> Term:
    """What grows ends at one of two bounds; where it leads with 0, what stands beside it does."""
    if x.degree <= 0 or x.is_nothing:
        lead = x.lead if x.degree >= 0 else torch.zeros_like(x.lead)
        return Term(lead=lead.clamp(low, high), dropped=x.dropped)
    lead = torch.where(x.lead > 0, high, low).to(x.lead.dtype)
    undecided = x.lead == 0
    if not bool(undecided.any()):
        return Term(lead=lead, dropped=also(x.dropped - {"constant", "lower degree"}, "saturation"))
    if x.dropped <= {"saturation"}:
        rest = Term(lead=torch.zeros_like(lead).clamp(low, high))
    else:
        rest = _between(beside(x, undecided), low, high)
    dropped = also(x.dropped | rest.dropped, "saturation")
    return Term(lead=torch.where(undecided, rest.lead, lead), dropped=dropped)


def _is_endless(bound: Any, like: Tensor) -> bool:
    if not isinstance(bound, int | float):
        return False
    edge = torch.tensor([-abs(float(bound))], dtype=torch.float64)
    return masked(edge) is not None or float(edge) <= torch.finfo(like.dtype).min / 2


def _clamp_max(x: Term, high: Any) -> Term:
    return _clamp(x, None, high)


def _compared(packet: Any) -> Callable[..., Tensor]:
    """x ? y by the sign of what leads x − y."""

    def rule(x: Any, y: Any) -> Tensor:
        x, y = terms(x, y)
        plain = packet(x.lead, y.lead)
        hidden = _hidden_in(x, y)
        if bool(hidden.all()) or _compare_as_they_are(x, y):
            return plain
        return torch.where(hidden, plain, packet(sign_of(difference(x, y)), 0))

    return rule


def _hidden_in(x: Term, y: Term) -> Tensor:
    """Where one of the two is a mask, or infinite: no degree changes how that compares."""
    edges = [lowest(each.lead.dtype) if each.lead.is_floating_point() else None for each in (x, y)]
    found = [
        torch.zeros_like(each.lead, dtype=torch.bool) if edge is None else each.lead <= edge
        for each, edge in zip((x, y), edges, strict=True)
    ]
    return found[0] | found[1] | (y.lead == torch.inf)


def _compare_as_they_are(x: Term, y: Term) -> bool:
    return x.degree == y.degree and (
        x.dropped | y.dropped <= {"saturation"} or not bool((x.lead == y.lead).any())
    )


COMPARISONS = (aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne)

RULES: dict[Any, Callable[..., Any]] = {
    aten.maximum: _larger,
    aten.minimum: _smaller,
    aten.clamp: _clamp,
    aten.clamp_min: _clamp,
    aten.clamp_max: _clamp_max,
    **{packet: _compared(packet) for packet in COMPARISONS},
}
