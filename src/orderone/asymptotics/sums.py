"""Sums, products and contractions: [MRGSS21] Table 1's linear layer, bias, sum and product."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.term import (
    NoLimitError,
    Term,
    joined,
    masked,
    minus,
    plus,
    reciprocal,
    scaled,
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


def _grouped_mm(x: Any, y: Any, *settings: Any, **named: Any) -> Term:
    def product(a: Tensor, b: Tensor) -> Tensor:
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
    return joined(terms(x, y), lambda leads: torch.where(condition, leads[0], leads[1]))


def _masked_fill(x: Term, mask: Tensor, value: Any) -> Term:
    return joined(terms(x, value), lambda leads: torch.where(mask, leads[1], leads[0]))


def _larger(x: Any, y: Any) -> Term:
    x, y = terms(x, y)
    return _where(minus(x, y).lead >= 0, x, y)


def _smaller(x: Any, y: Any) -> Term:
    x, y = terms(x, y)
    return _where(minus(x, y).lead <= 0, x, y)


def _clamp(x: Term, low: Any = None, high: Any = None) -> Term:
    """Bounds at the end of the dtype, which guard against overflow, bound nothing in the limit."""
    if low is not None and not _is_endless(low, x.lead):
        x = _larger(x, low)
    if high is not None and not _is_endless(high, x.lead):
        x = _smaller(x, high)
    return x


def _is_endless(bound: Any, like: Tensor) -> bool:
    if not isinstance(bound, int | float):
        return False
    edge = torch.tensor([-abs(float(bound))], dtype=torch.float64)
    return masked(edge) is not None or float(edge) <= torch.finfo(like.dtype).min / 2


def _clamp_max(x: Term, high: Any) -> Term:
    return _clamp(x, None, high)


def _cat(parts: list[Any], dim: int = 0) -> Term:
    kept = [part for part in parts if term(part).lead.shape != (0,)]  # an empty cache
    return joined(terms(*kept), lambda leads: torch.cat(leads, dim))


def _stack(parts: list[Any], dim: int = 0) -> Term:
    return joined(terms(*parts), lambda leads: torch.stack(leads, dim))


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Term:
    if accumulate:
        raise _refused_write("an indexed sum")
    return joined(terms(x, values), lambda leads: aten.index_put(leads[0], indices, leads[1]))


def _refused_write(what: str) -> NoLimitError:
    return NoLimitError(what, expected="a plain write", do="write it as an addition")


def _compared(packet: Any) -> Callable[..., Tensor]:
    """x ? y by the sign of what leads x − y."""

    def rule(x: Any, y: Any) -> Tensor:
        x, y = terms(x, y)
        if x.degree == y.degree:
            return packet(x.lead, y.lead)
        return packet(minus(x, y).lead, 0)

    return rule


_PRODUCTS = (aten.mm, aten.bmm, aten.mv, aten.dot, aten.matmul)
_COMPARISONS = (aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne)

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
    **{packet: _compared(packet) for packet in _COMPARISONS},
}
