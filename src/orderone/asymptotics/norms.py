"""Normalisations: they keep what leads and drop to degree 0, [MRGSS21] Table 1, App. C."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.algebra import plus, power, times
from orderone.asymptotics.term import NoLimitError, Term, also, term

aten: Any = torch.ops.aten


def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Term, Tensor, Tensor]:
    dims = tuple(range(-len(shape), 0))
    made = _affine(_normalised(term(x), dims, eps, centred=True), weight, bias)
    return made, torch.empty(0), torch.empty(0)  # mean and deviation: for the backward pass only


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Term:
    dims = tuple(range(-len(shape), 0))
    x = term(x)
    epsilon = torch.finfo(x.lead.dtype).eps if eps is None else eps
    return _affine(_normalised(x, dims, epsilon, centred=False), weight, None)


def _fused_rms_norm(
    x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> tuple[Term, Tensor]:
    return _rms_norm(x, shape, weight, eps), torch.empty(0)


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Term, Tensor, Tensor]:
    del hw
    x = term(x)
    split = replace(x, lead=x.lead.reshape(n, groups, -1), tail=None)
    normal = _normalised(split, (-1,), eps, centred=True)
    shape = (1, c) + (1,) * (x.lead.ndim - 2)
    made = replace(normal, lead=normal.lead.reshape(x.lead.shape))
    affine = _affine(made, _viewed(weight, shape), _viewed(bias, shape))
    return affine, torch.empty(0), torch.empty(0)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Term, Tensor, Tensor]:
    """With running statistics: an affine map, which does not normalise what comes in."""
    del momentum
    x = term(x)
    shape = (1, -1) + (1,) * (x.lead.ndim - 2)
    centred = plus(x, Term(lead=-term(mean).lead.view(shape)))
    inverse = Term(lead=(term(var).lead + eps).rsqrt().view(shape))
    made = times(centred, inverse, torch.mul)
    return (
        _affine(made, _viewed(weight, shape), _viewed(bias, shape)),
        torch.empty(0),
        torch.empty(0),
    )


def _viewed(x: Any, shape: Sequence[int]) -> Term | None:
    if x is None:
        return None
    known = term(x)
    return Term(lead=known.lead.view(shape), degree=known.degree, dropped=known.dropped)


def _affine(x: Any, weight: Any, bias: Any) -> Term:
    if weight is not None:
        x = times(x, term(weight), torch.mul)
    return x if bias is None else plus(x, term(bias))


def _normalised(x: Term, dims: tuple[int, ...], eps: float, *, centred: bool) -> Term:
    """(x − mean)/√(var + ε): ε vanishes above degree 0, and is all that is left below."""
    if x.lead.dtype.itemsize < 4:  # as PyTorch does: squares and means in single precision
        single = _normalised(replace(x, lead=x.lead.float(), tail=None), dims, eps, centred=centred)
        return replace(single, lead=single.lead.to(x.lead.dtype))
    d = x.lead - x.lead.mean(dim=dims, keepdim=True) if centred else x.lead
    square = d.square().mean(dim=dims, keepdim=True)
    if x.degree < 0:
        return Term(lead=d / eps**0.5, degree=x.degree, dropped=also(x.dropped, "constant"))
    if x.degree == 0:
        return Term(lead=d * (square + eps).rsqrt(), dropped=x.dropped)
    flat = square.sqrt() <= _rounding_of(x.lead, dims)
    if bool(flat.any()) and not x.zeros_are_certain:
        raise _constant_rows(int(flat.sum()), x, centred=centred)
    lead = torch.where(flat, 0.0, d * square.rsqrt())
    dropped = also(x.dropped, "constant") if eps else x.dropped
    return Term(lead=lead, dropped=dropped)


def _rounding_of(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A row this close to its mean is constant, but for rounding."""
    return 16 * torch.finfo(x.dtype).eps * x.abs().amax(dim=dims, keepdim=True)


def _constant_rows(rows: int, x: Term, *, centred: bool) -> NoLimitError:
    what = "constant" if centred else "0"
    return NoLimitError(
        f"{rows} rows to normalise whose leading coefficients, of degree {x.degree}, are {what}",
        expected="rows that vary, since what is left of them has an unknown lower degree",
        do="leave out such inputs, or leave some parameters unscaled",
    )


def _batch_norm_of_the_batch(x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """By the batch's own statistics, as weights are standardised and instances normalised."""
    if len(settings) != 3:  # running statistics are written to
        raise NoLimitError(
            "a batch norm in training mode",
            expected="running statistics, which scale nothing",
            do="call model.eval()",
        )
    x = term(x)
    dims = (0, *range(2, x.lead.ndim))
    normal = _normalised(x, dims, settings[-1], centred=True)
    shape = (1, -1) + (1,) * (x.lead.ndim - 2)
    made = _affine(normal, _viewed(weight, shape), _viewed(bias, shape))
    return made, torch.empty(0), torch.empty(0)


def _variance(packet: Any) -> Callable[..., Term]:
    """Of degree 2k; a deviation is its root."""

    def rule(x: Term, *args: Any, **kwargs: Any) -> Term:
        made = Term(lead=aten.var(x.lead, *args, **kwargs), degree=2 * x.degree, dropped=x.dropped)
        return power(made, 0.5) if packet is aten.std else made

    return rule


def _variance_and_mean(x: Term, *args: Any, **kwargs: Any) -> tuple[Term, Term]:
    var, mean = aten.var_mean(x.lead, *args, **kwargs)
    return (
        Term(lead=var, degree=2 * x.degree, dropped=x.dropped),
        Term(lead=mean, degree=x.degree, dropped=x.dropped),
    )


RULES: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm: _layer_norm,
    aten.rms_norm: _rms_norm,
    aten._fused_rms_norm: _fused_rms_norm,
    aten.native_group_norm: _group_norm,
    aten._native_batch_norm_legit_no_training: _batch_norm,
    aten._native_batch_norm_legit: _batch_norm_of_the_batch,
    aten.var: _variance(aten.var),
    aten.std: _variance(aten.std),
    aten.var_mean: _variance_and_mean,
}
