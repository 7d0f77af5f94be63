"""How torch's functions apply parameters: linear maps, lookups, convolutions, norms, attention.

Each rule calls the function with the parameter out of autograd's sight, and notes the use. Where
the function's arguments are not of a known form, the parameter stays with autograd.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.probes.tangent_backward import normalised, pointwise
from orderone.probes.tangent_together import ApartError, samples_beneath
from orderone.probes.tangent_uses import BiasUse, GainUse, OuterUse, Rule, Watch


def _own(watch: Watch, parameter: Any) -> Any:
    """The parameter out of autograd's sight, where it is one that is watched."""
    return parameter.detach() if watch.name(parameter) else parameter


def _bias(watch: Watch, bias: Any) -> tuple[BiasUse, ...]:
    name = watch.name(bias)
    return (BiasUse(name=name),) if name else ()


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _linear(watch: Watch, func: Any, input: Tensor, weight: Any, bias: Any = None) -> Tensor:
    """W s + b."""
    name, biases = watch.name(weight), _bias(watch, bias)
    out = func(input, _own(watch, weight), _own(watch, bias))
    if not name and not biases:
        return out
    outer = (
        OuterUse(name=name, axis=1, fixed=watch.fixed(_rows(watch.held(input)))) if name else None
    )
    return watch.tapped(out, weight.shape[0], *([outer] if outer else []), *biases)


def _addmm(watch: Watch, func: Any, input: Any, mat1: Tensor, mat2: Any, **settings: Any) -> Tensor:
    """b + s W, the weight fan-in first, as transformers' Conv1D."""
    name, biases = watch.name(mat2), _bias(watch, input)
    flat_bias = not biases or input.ndim == 1
    if settings or not (name and flat_bias):
        return watch.plainly(func, input, mat1, mat2, **settings)
    out = func(_own(watch, input), mat1, mat2.detach())
    outer = OuterUse(name=name, axis=0, fixed=watch.fixed(watch.held(mat1)))
    return watch.tapped(out, mat2.shape[1], outer, *biases)


def _matmul(watch: Watch, func: Any, input: Tensor, other: Any, **settings: Any) -> Tensor:
    """s W."""
    name = watch.name(other)
    if settings or not name or other.ndim != 2 or input.ndim < 2:
        return watch.plainly(func, input, other, **settings)
    out = func(input, other.detach())
    outer = OuterUse(name=name, axis=0, fixed=watch.fixed(_rows(watch.held(input))))
    return watch.tapped(out, other.shape[1], outer)


def _embedding(
    watch: Watch,
    func: Any,
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of W by index."""
    name = watch.name(weight)
    if not name or max_norm is not None or scale_grad_by_freq:
        settings = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return watch.plainly(func, input, weight, *settings)
    out = func(input, weight.detach(), padding_idx)
    index = watch.fixed(watch.held(input).flatten())
    kept = None if padding_idx is None else index != padding_idx % len(weight)
    outer = OuterUse(name=name, axis=0, fixed=index, kept=kept)
    return watch.tapped(out, weight.shape[1], outer)


def _layer_norm(
    watch: Watch,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Tensor:
    """g ∘ LN(z) + b."""
    gain, biases = watch.name(weight), _bias(watch, bias)
    if len(normalized_shape) != 1 or not watch.is_tracked(input):
        out = func(input, normalized_shape, _own(watch, weight), _own(watch, bias), eps)
        x = func(input.detach(), normalized_shape, eps=eps) if gain else None
    else:
        out = x = normalised(input, eps)
        out = out if weight is None else out * _own(watch, weight)
        out = out if bias is None else out + _own(watch, bias)
    n = math.prod(normalized_shape)
    return _normed(watch, out, n, gain, biases, x) if gain or biases else out


def _rms_norm(
    watch: Watch,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Any = None,
    eps: float | None = None,
) -> Tensor:
    """g ∘ z / r.m.s.(z)."""
    out = func(input, normalized_shape, _own(watch, weight), eps)
    gain = watch.name(weight)
    if gain:
        x = func(input.detach(), normalized_shape, eps=eps)
        return _normed(watch, out, math.prod(normalized_shape), gain, (), x)
    return out


def _normed(
    watch: Watch,
    out: Tensor,
    n: int,
    gain: str | None,
    biases: tuple[BiasUse, ...],
    x: Tensor | None,
) -> Tensor:
    """Notes the gain and the bias of a norm over n features."""
    gains: tuple[GainUse, ...] = ()
    if gain and x is not None:
        gains = (GainUse(name=gain, fixed=watch.fixed(x.reshape(-1, n))),)
    return watch.tapped(out, n, *gains, *biases)


def _conv(
    watch: Watch,
    func: Any,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution: a linear map of unfolded patches."""
    name, space = watch.name(weight), weight.ndim - 2
    simple = groups == 1 and not isinstance(padding, str) and input.ndim == weight.ndim
    if not name or not simple:
        return watch.plainly(func, input, weight, bias, stride, padding, dilation, groups)
    biases = _bias(watch, bias)
    out = func(input, weight.detach(), _own(watch, bias), stride, padding, dilation, groups)
    patches = _unfolded(input.detach(), weight.shape[2:], stride, padding, dilation)
    outer = OuterUse(name=name, axis=1, fixed=watch.fixed(_rows(patches.mT)))
    assert space in (1, 2)
    return watch.tapped(out, weight.shape[0], outer, *biases, channels=True)


def _unfolded(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """What each output of a convolution sees: 1 × (channels · kernel) × places."""
    space = x.ndim - 2

    def both(value: Any, idle: int) -> tuple[int, int]:
        values = tuple(value) if isinstance(value, tuple | list | torch.Size) else (value,) * space
        values = values * (space if len(values) == 1 else 1)
        return (idle, values[0]) if space == 1 else (values[0], values[1])

    if space == 1:
        x = x[:, :, None]
    # Padding is what differs between "nothing" in a missing dimension and in a present one.
    return functional.unfold(
        x, both(kernel, 1), both(dilation, 1), both(padding, 0), both(stride, 1)
    )


def _pointwise(watch: Watch, func: Any, input: Tensor, *rest: Any, **settings: Any) -> Tensor:
    """σ(w), for the many cotangents to come."""
    if not watch.is_tracked(input) or settings.get("inplace") or any(x is True for x in rest):
        return watch.plainly(func, input, *rest, **settings)
    w = input.detach()
    kind = {key: value for key, value in settings.items() if key == "approximate"}
    slope = _SLOPES[func](torch.ones_like(w), w, **kind)
    return pointwise(input, func(w, *rest, **settings), slope)


_SLOPES: Mapping[Any, Any] = {
    functional.gelu: torch.ops.aten.gelu_backward,
    functional.silu: torch.ops.aten.silu_backward,
    functional.mish: torch.ops.aten.mish_backward,
}
"""x̄ ∘ σ'(w) of x̄ and w."""


def _attention(watch: Watch, func: Any, *args: Any, **settings: Any) -> Tensor:
    """softmax(q k) v in plain form: fused kernels take many cotangents one after another."""
    out: Tensor = watch.plainly(_plain_attention, *args, **settings)
    query, key = args[:2] if len(args) > 1 else (settings["query"], settings["key"])
    scores = query.nbytes // query.shape[-1] * key.shape[-2]
    watch.count(4 * scores, scores)  # what the plain form keeps, unseen from outside
    return out


def _plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **settings: Any,
) -> Tensor:
    """The arguments of ``scaled_dot_product_attention``; torch's own reference for it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The reference adds its mask: of a boolean one it would add 1 where keys are seen.
        closed = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = closed.masked_fill(~attn_mask, -torch.inf)
    reference = torch.ops.aten._scaled_dot_product_attention_math
    return reference(query, key, value, attn_mask, *rest, **settings)[0]


def _agreed(watch: Watch, func: Any, x: Tensor) -> bool:
    """A choice of path: where all samples make the same one, it is each one's own."""
    beneath, axis = samples_beneath(x)
    if axis is None:
        return func(x)
    yes = beneath != 0
    if yes.any() and not yes.all():
        raise ApartError("samples of which each takes a path of its own")
    return bool(yes.all())


RULES: Mapping[Any, Rule] = {
    Tensor.__bool__: _agreed,
    functional.gelu: _pointwise,
    functional.silu: _pointwise,
    functional.mish: _pointwise,
    functional.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.mm: _matmul,
    Tensor.__matmul__: _matmul,
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.conv1d: _conv,
    functional.conv2d: _conv,
}
