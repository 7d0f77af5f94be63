"""Operations that move numbers about or are linear in them: every term keeps its degree."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.term import NoLimitError, Term, masked

aten: Any = torch.ops.aten

VIEWS: frozenset[Any] = frozenset(
    {
        aten.view,
        aten._unsafe_view,
        aten._reshape_alias,
        aten.transpose,
        aten.t,
        aten.permute,
        aten.expand,
        aten.slice,
        aten.select,
        aten.unsqueeze,
        aten.squeeze,
        aten.split,
        aten.split_with_sizes,
        aten.unbind,
        aten.as_strided,
        aten.alias,
        aten.detach,
        aten.diagonal,
        aten.unfold,
        aten.view_as_real,
        aten.view_as_complex,
    }
)
_COPIES = (
    aten.clone,
    aten.index,
    aten.index_select,
    aten.gather,
    aten.take_along_dim,
    aten.embedding,
    aten.repeat,
    aten.roll,
    aten.flip,
    aten.tril,
    aten.triu,
    aten.im2col,
    aten.constant_pad_nd,
)
_LINEAR = (
    aten.sum,
    aten.mean,
    aten.cumsum,
    aten.avg_pool1d,
    aten.avg_pool2d,
    aten._adaptive_avg_pool2d,
    aten.upsample_bilinear2d,
    aten.upsample_bicubic2d,
    aten.upsample_nearest2d,
    aten._upsample_bilinear2d_aa,
    aten._upsample_bicubic2d_aa,
    aten.trace,
    aten._fft_c2c,
    aten._fft_r2c,
    aten._fft_c2r,
)
# f(c x) = c f(x) for c > 0, without being linear.
_HOMOGENEOUS = (
    aten.amax,
    aten.amin,
    aten.max,
    aten.min,
    aten.topk,
    aten.sort,
    aten.max_pool2d_with_indices,
    aten.linalg_vector_norm,
    aten.norm,
)
_LIKE = (aten.ones_like, aten.full_like, aten.new_ones, aten.new_full)
_BLANK = (aten.zeros_like, aten.empty_like, aten.new_zeros, aten.new_empty)
_ASKED = (aten.argmax, aten.argmin, aten.isnan, aten.isinf, aten.isfinite, aten.argsort)


def _moved(packet: Any, *, linear: bool) -> Callable[..., Any]:
    def rule(x: Term, *args: Any, **kwargs: Any) -> Any:
        made = packet(x.lead, *args, **kwargs)
        if isinstance(made, Tensor):
            return replace(
                x, lead=made, tail=_tail(x, args, kwargs) if linear else None, note="", margin=None
            )
        if linear and x.tail is not None:
            tails = packet(x.tail.lead.expand(x.lead.shape), *args, **kwargs)
            return [
                Term(
                    lead=each,
                    degree=x.degree,
                    dropped=x.dropped,
                    tail=Term(lead=tail, degree=x.tail.degree, dropped=x.tail.dropped),
                )
                for each, tail in zip(made, tails, strict=True)
            ]
        return [_kept(x, each) for each in made]

    def _tail(x: Term, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Term | None:
        if x.tail is None:
            return None
        full = replace(x.tail, lead=x.tail.lead.expand(x.lead.shape).contiguous())
        return None if packet is aten.as_strided else rule(full, *args, **kwargs)

    return rule


def _split_apart(packet: Any) -> Callable[..., Any]:
    """Parts that PyTorch lets be written into apart from each other: copies."""
    move = _moved(packet, linear=True)

    def rule(x: Term, *args: Any, **kwargs: Any) -> list[Term]:
        return [replace(part, lead=part.lead.clone()) for part in move(x, *args, **kwargs)]

    return rule


def _kept(x: Term, made: Tensor) -> Term | Tensor:
    """A part with the degree of the whole; indices are ordinary integers."""
    if not made.is_floating_point() and not made.is_complex():
        return made
    return Term(lead=made, degree=x.degree, dropped=x.dropped)


def _plain(packet: Any) -> Callable[..., Tensor]:
    def rule(x: Term, *args: Any, **kwargs: Any) -> Tensor:
        return packet(x.lead, *args, **kwargs)

    return rule


def _blank(packet: Any) -> Callable[..., Any]:
    """Zeros for certain: values of any degree can be written into them."""
    zeros = aten.new_zeros if packet is aten.new_empty else packet
    zeros = aten.zeros_like if packet is aten.empty_like else zeros

    def rule(x: Term, *args: Any, **kwargs: Any) -> Any:
        return _kept(Term(lead=x.lead), zeros(x.lead, *args, **kwargs))

    return rule


def _converted(x: Term, **kwargs: Any) -> Any:
    """To another dtype or device; bounded values alone can become whole numbers."""
    dtype = kwargs.get("dtype") or x.lead.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return _moved(aten._to_copy, linear=True)(x, **kwargs)
    if x.degree > 0 and dtype != torch.bool:
        raise NoLimitError(
            f"whole numbers made of a value of degree {x.degree}",
            expected="a value that does not grow",
            do="leave the parameters before it unscaled",
        )
    lead = x.lead if x.degree >= 0 or dtype == torch.bool else torch.zeros_like(x.lead)
    return aten._to_copy(lead, **kwargs)


def _number(x: Term) -> Any:
    """A Python number, for Python's own control flow."""
    if x.degree == 0:
        return aten._local_scalar_dense(x.lead)
    raise NoLimitError(
        f"a Python number made of a value of degree {x.degree}",
        expected="a value of degree 0",
        do="keep it a tensor, or leave the parameters before it unscaled",
    )


def _sum_rule(packet: Any) -> Callable[..., Term]:
    """exp's sum over a row and the like: linear unless masks are among the summands."""
    move = _moved(packet, linear=True)

    def rule(x: Term, *args: Any, **kwargs: Any) -> Term:
        if masked(x.lead) is not None:
            raise NoLimitError(
                "a sum over masked entries", expected="sums of numbers", do="mask after the sum"
            )
        return move(x, *args, **kwargs)

    return rule


RULES: dict[Any, Callable[..., Any]] = {
    **{each: _moved(each, linear=True) for each in (*VIEWS, *_COPIES, *_LINEAR)},
    **{each: _sum_rule(each) for each in (aten.sum, aten.mean, aten.cumsum)},
    **{each: _moved(each, linear=False) for each in _HOMOGENEOUS},
    **{each: _plain(each) for each in (*_LIKE, *_ASKED)},
    **{each: _blank(each) for each in _BLANK},
    aten._to_copy: _converted,
    aten.unsafe_split: _split_apart(aten.unsafe_split),
    aten.unsafe_split_with_sizes: _split_apart(aten.unsafe_split_with_sizes),
    aten._local_scalar_dense: _number,
}
