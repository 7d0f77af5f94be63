"""Sums, products and contractions: [MRGSS21] Table 1's linear layer, bias, sum and product."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.term import (
    NoLimitError,
    Reason,
    Term,
    also,
    beside,
    chosen,
    difference,
    lowest,
    masked,
    plus,
    reciprocal,
    scaled,
    side_by_side,
    sign_of,
    term,
    terms,
    times,
)

aten: Any = torch.ops.aten


def _add(x: Any, y: Any, *, alpha: float = 1) -> Term:
    x, y = terms(x, y)
    return plus(x, scaled(y, alpha))


def _sub(x: Any, y: Any, *, alpha: float = 1) -> Term:
    return _add(x, y, alpha=-alpha)


def _rsub(x: Any, y: Any, alpha: float = 1) -> Term:
    return _add(y, x, alpha=-alpha)


def _mul(x: Any, y: Any) -> Term:
    if isinstance(y, int | float):
        return scaled(x, y)
    if isinstance(x, int | float):
        return scaled(y, x)
    return times(term(x), term(y), torch.mul)


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Term:
    if rounding_mode is not None:
        raise NoLimitError(
            f"a division that rounds ({rounding_mode})",
            expected="a division without rounding",
            do="leave the parameters before it unscaled",
        )
    x, y = terms(x, y)
    if y.degree == 0 and not y.dropped:
        return times(x, y, torch.div)
    return times(x, reciprocal(y), torch.mul)


def _product(packet: Any) -> Callable[..., Term]:
    def rule(x: Any, y: Any) -> Term:
        return times(term(x), term(y), packet)

    return rule


def _added_product(packet: Any) -> Callable[..., Term]:
    """β bias + α x y, as in a linear layer: a bias has degree 1, the product k + 1."""

    def rule(bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Term:
        made = scaled(times(term(x), term(y), packet), alpha)
        return plus(made, scaled(term(bias), beta)) if beta else made

    return rule


def _linear(x: Any, weight: Any, bias: Any = None) -> Term:
    def product(a: Tensor, w: Tensor) -> Tensor:
        return a @ w.mT

    made = times(term(x), term(weight), product)
    return made if bias is None else plus(made, term(bias))


def _grouped(a: Tensor, b: Tensor, ends: Tensor | None = None, *unused: Any) -> Tensor:
    """Each group of rows of ``a``, which end at ``ends``, times its own matrix of ``b``."""
    if ends is None or a.ndim != 2 or b.ndim != 3:
        raise NoLimitError(
            f"a grouped product of {a.ndim} and {b.ndim} dimensions in float64",
            expected="rows, and a matrix for each group of them",
            do="use another implementation of the experts",
        )
    del unused
    bounds = [0, *(int(end) for end in ends)]
    groups = [a[i:j] @ each for i, j, each in zip(bounds[:-1], bounds[1:], b, strict=True)]
    return torch.cat([*groups, a.new_zeros(len(a) - bounds[-1], b.shape[-1])])


def _grouped_mm(x: Any, y: Any, *settings: Any, **named: Any) -> Term:
    def product(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype == torch.float64:  # which PyTorch's own does not take
            return _grouped(a, b, *settings, **named)
        return aten._grouped_mm(a, b, *settings, **named)

    return times(term(x), term(y), product)


def _addcmul(z: Any, x: Any, y: Any, *, value: float = 1) -> Term:
    return plus(term(z), scaled(times(term(x), term(y), torch.mul), value))


def _convolution(x: Any, weight: Any, bias: Any, *settings: Any) -> Term:
    def product(a: Tensor, w: Tensor) -> Tensor:
        return aten.convolution(a, w, None, *settings)

    made = times(term(x), term(weight), product)
    if bias is None:
        return made
    b = term(bias)
    shape = (1, -1) + (1,) * (made.lead.ndim - 2)
    return plus(made, Term(lead=b.lead.view(shape), degree=b.degree, dropped=b.dropped))


def _where(condition: Tensor, x: Any, y: Any) -> Term:
    return chosen(condition, *terms(x, y))


def _masked_fill(x: Term, mask: Tensor, value: Any) -> Term:
    x, y = terms(x, value)
    return chosen(mask, y, x)


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


def _cat(parts: list[Any], dim: int = 0) -> Term:
    kept = [part for part in parts if term(part).lead.shape != (0,)]  # an empty cache
    return side_by_side(terms(*kept), lambda leads: torch.cat(leads, dim))


def _stack(parts: list[Any], dim: int = 0) -> Term:
    return side_by_side(terms(*parts), lambda leads: torch.stack(leads, dim))


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Term:
    if accumulate:
        return _plus_scattered(x, values, lambda into, v: aten.index_put(into, indices, v, True))
    return side_by_side(terms(x, values), lambda leads: aten.index_put(leads[0], indices, leads[1]))


def _plus_scattered(x: Any, values: Any, put: Callable[[Tensor, Tensor], Tensor]) -> Term:
    """x and what is added to it at some places: a sum, the rest of which is 0."""
    x, v = terms(x, values)
    added = put(torch.zeros_like(x.lead, dtype=v.lead.dtype), v.lead)
    return plus(x, Term(lead=added, degree=v.degree, dropped=v.dropped))


def _scatter(x: Any, dim: int, index: Tensor, values: Any, **named: Any) -> Term:
    if named:
        raise NoLimitError(
            f"a scatter with {next(iter(named))}=", expected="a plain write", do="write it as a sum"
        )
    x, v = terms(x, values)
    v = replace(v, lead=v.lead.expand(index.shape) if not v.lead.ndim else v.lead, tail=None)
    return side_by_side(
        [replace(x, tail=None), v], lambda leads: aten.scatter(leads[0], dim, index, leads[1])
    )


def _scatter_add(x: Any, dim: int, index: Tensor, values: Any) -> Term:
    return _plus_scattered(x, values, lambda into, v: aten.scatter_add(into, dim, index, v))


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


_PRODUCTS = (aten.mm, aten.bmm, aten.mv, aten.dot, aten.matmul)
COMPARISONS = (aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne)

RULES: dict[Any, Callable[..., Any]] = {
    aten.add: _add,
    aten.sub: _sub,
    aten.rsub: _rsub,
    aten.neg: partial(scaled, factor=-1),
    aten.mul: _mul,
    aten.div: _div,
    **{packet: _product(packet) for packet in _PRODUCTS},
    aten.addmm: _added_product(torch.mm),
    aten.baddbmm: _added_product(torch.bmm),
    aten.addmv: _added_product(torch.mv),
    aten.linear: _linear,
    aten._grouped_mm: _grouped_mm,
    aten.addcmul: _addcmul,
    aten.convolution: _convolution,
    aten.where: _where,
    aten.masked_fill: _masked_fill,
    aten.maximum: _larger,
    aten.minimum: _smaller,
    aten.clamp: _clamp,
    aten.clamp_min: _clamp,
    aten.clamp_max: _clamp_max,
    aten.cat: _cat,
    aten.stack: _stack,
    aten.index_put: _index_put,
    aten.scatter: _scatter,
    aten.scatter_add: _scatter_add,
    **{packet: _compared(packet) for packet in COMPARISONS},
}
