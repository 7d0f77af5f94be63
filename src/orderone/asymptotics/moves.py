"""Operations that move numbers about or are linear in them: every term keeps its degree."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orderone.asymptotics.algebra import side_by_side
from orderone.asymptotics.term import NoLimitError, Term, cancelled, masked, sign_of, terms

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
    aten.masked_select,
    aten.repeat,
    aten.take,
    aten.roll,
    aten.flip,
    aten.tril,
    aten.triu,
    aten.im2col,
    aten.col2im,
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.replication_pad1d,
    aten.replication_pad2d,
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
    aten.upsample_linear1d,
    aten.upsample_nearest1d,
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
    aten.adaptive_max_pool2d,
    aten.cummax,
    aten.cummin,
    aten.max_pool2d_with_indices,
)
_NORMS = (aten.linalg_vector_norm, aten.norm)
LIKE = (aten.ones_like, aten.full_like, aten.new_ones, aten.new_full)
_BLANK = (aten.zeros_like, aten.empty_like, aten.new_zeros, aten.new_empty)
ASKED = (aten.isnan, aten.isinf, aten.isfinite)


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
    if dtype == torch.bool:
        return aten._to_copy(sign_of(x), **kwargs)
    if x.degree < 0:
        return aten._to_copy(torch.zeros_like(x.lead), **kwargs)
    at_step = (x.lead == x.lead.trunc()) & (x.lead != 0)
    if not x.dropped <= {"saturation"} and bool(at_step.any()):
        raise NoLimitError(
            f"whole numbers made of {int(at_step.sum())} values about to become them",
            expected="values whose limit is between two whole numbers",
            do="leave the parameters before it unscaled",
        )
    return aten._to_copy(x.lead, **kwargs)


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
        return _without_rounding(x, move(x, *args, **kwargs), packet, args, kwargs)

    return rule


def _without_rounding(
    x: Term, made: Term, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Term:
    """A sum that is 0 but for rounding is 0, so that nothing is divided by rounding."""
    if packet is aten.cumsum or not x.lead.is_floating_point():
        return made
    size = packet(x.lead.abs(), *args, **kwargs)
    gone = made.lead.abs() <= 8 * torch.finfo(made.lead.dtype).eps * size
    lead = made.lead.masked_fill(gone, 0.0)
    if x.zeros_are_certain or x.vanishes or bool(lead.any()) or not lead.numel():
        return replace(made, lead=lead)
    raise cancelled("a sum", x.degree)


def _padded(x: Term, pad: Sequence[int], value: float = 0) -> Term:
    """Beside a value of degree k the number at the edges is of degree 0, or a mask."""
    return side_by_side(
        terms(x, value), lambda leads: aten.constant_pad_nd(leads[0], pad, float(leads[1]))
    )


def _length(packet: Any) -> Callable[..., Term]:
    move = _moved(packet, linear=False)

    def rule(x: Term, p: Any = 2, *args: Any, **kwargs: Any) -> Term:
        if p is not None and p <= 0:
            raise NoLimitError(
                f"a norm of order {p}", expected="an order above 0", do="count in another way"
            )
        return move(x, p, *args, **kwargs)

    return rule


def _place(packet: Any) -> Callable[..., Tensor]:
    """Where the largest or the smallest is, if what leads decides it."""
    extreme = aten.amax if packet is aten.argmax else aten.amin

    def rule(x: Term, dim: int | None = None, keepdim: bool = False) -> Tensor:
        dims = [] if dim is None else [dim]
        ties = (x.lead == extreme(x.lead, dims, True)).sum(dims or None)
        _check_order(x, int((ties > 1).sum()))
        return packet(x.lead, dim, keepdim)

    return rule


def _first(x: Term, k: int, dim: int = -1, *args: Any, **kwargs: Any) -> Any:
    """The k largest: of the last one's equals the others must be equal for certain, or 0."""
    made = _moved(aten.topk, linear=False)(x, k, dim, *args, **kwargs)
    if 0 < k < x.lead.shape[dim]:
        last = made[0].lead.select(dim, k - 1).unsqueeze(dim)
        beyond = (x.lead == last).sum(dim) > (made[0].lead == last).sum(dim)
        vanishing = x.dropped <= {"saturation"} and not x.degree
        counts = beyond & (last.squeeze(dim) != 0) if vanishing else beyond
        _check_order(x, int(counts.sum()))
    return made


def _ordered(packet: Any) -> Callable[..., Any]:
    move = _moved(packet, linear=False) if packet is aten.sort else _plain(packet)

    def rule(x: Term, *args: Any, **kwargs: Any) -> Any:
        dim = next((each for each in args if type(each) is int), kwargs.get("dim", -1))
        if x.lead.ndim:
            values = x.lead.sort(dim=dim).values
            _check_order(x, int((values.diff(dim=dim) == 0).sum()))
        return move(x, *args, **kwargs)

    return rule


def _check_order(x: Term, ties: int) -> None:
    if ties and x.dropped:
        raise NoLimitError(
            f"an order of numbers of degree {x.degree} of which {ties} lead alike",
            expected="leading coefficients that differ",
            do="change the parameters or inputs that make them tie, or leave some unscaled",
        )


RULES: dict[Any, Callable[..., Any]] = {
    **{each: _moved(each, linear=True) for each in (*VIEWS, *_COPIES, *_LINEAR)},
    **{each: _sum_rule(each) for each in (aten.sum, aten.mean, aten.cumsum)},
    **{each: _moved(each, linear=False) for each in _HOMOGENEOUS},
    **{each: _plain(each) for each in (*LIKE, *ASKED)},
    **{each: _blank(each) for each in _BLANK},
    **{each: _length(each) for each in _NORMS},
    **{each: _place(each) for each in (aten.argmax, aten.argmin)},
    **{each: _ordered(each) for each in (aten.sort, aten.argsort)},
    aten.topk: _first,
    aten.constant_pad_nd: _padded,
    aten._to_copy: _converted,
    aten.unsafe_split: _split_apart(aten.unsafe_split),
    aten.unsafe_split_with_sizes: _split_apart(aten.unsafe_split_with_sizes),
    aten._local_scalar_dense: _number,
}
