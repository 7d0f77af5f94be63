"""Sums, products and contractions: [MRGSS21] Table 1's linear layer, bias, sum and product."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.algebra import chosen, plus, reciprocal, scaled, side_by_side, times
from orderone.asymptotics.term import NoLimitError, Term, term, terms

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


_PRODUCTS = (aten.mm, aten.bmm, aten.mv, aten.dot, aten.matmul)

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
    aten.cat: _cat,
    aten.stack: _stack,
    aten.index_put: _index_put,
    aten.scatter: _scatter,
    aten.scatter_add: _scatter_add,
}
