"""Where a model's parameters meet its signals, seen in one forward pass.

torch's own functions are watched. One that applies a parameter in a known way (a linear map, a
convolution, a lookup, a norm's gain and bias) is handed the detached parameter instead, and what is
needed to write the gradient from the backpropagated signal is noted: a *use*. Every other path from
a parameter, such as a bare addition or a transposed matrix, stays with autograd. The gradient is
the sum of both, whatever else shares the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.probes.tangent_backward import normalised, pointwise

Axis = int
"""Of a parameter seen as a matrix: 0 rows, 1 columns."""


@dataclass(frozen=True, kw_only=True)
class OuterUse:
    """∂f/∂W = Σ_t δ_t ⊗ x_t: x lies along ``axis`` of the matrix, δ along the other."""

    name: str
    axis: Axis
    fixed: Tensor
    """x, T × fan-in; or, of a lookup, the T looked-up indices: x is then one-hot."""
    kept: Tensor | None = None
    """The t that count: a lookup of the padding index has no gradient."""


@dataclass(frozen=True, kw_only=True)
class BiasUse:
    """∂f/∂b = Σ_t δ_t."""

    name: str


@dataclass(frozen=True, kw_only=True)
class GainUse:
    """∂f/∂g = Σ_t δ_t ∘ x_t, x the normalised signal, T × n."""

    name: str
    fixed: Tensor


@dataclass(frozen=True, kw_only=True)
class Use:
    """One place where parameters are applied; δ is the gradient of an output with respect to it."""

    edge: Any
    """The place in autograd's graph (torch.autograd.graph.GradientEdge)."""
    dims: tuple[int, int]
    """T and d, of δ as a matrix."""
    channels_first: bool
    pieces: tuple[OuterUse | BiasUse | GainUse, ...]

    def columns(self, delta: Tensor) -> Tensor:
        """δ of R outputs as R × T × d."""
        if self.channels_first:
            delta = delta.movedim(2, -1)  # (R, 1, channels, ...): beside R the sample's own axis
        return delta.reshape(len(delta), *self.dims)


class Watch(TorchFunctionMode):
    """While active, notes every use of ``parameters``, and how large the pass's tensors are."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._versions: list[tuple[Tensor, int]] = []
        self.uses: list[Use] = []
        self.bytes = 0
        self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func) if torch.is_grad_enabled() else None
        out = rule(self, func, *args, **kwargs) if rule else func(*args, **kwargs)
        if isinstance(out, Tensor):
            self._count(out.nbytes if not out._is_view() else 0, out.nbytes)
        if func is functional.scaled_dot_product_attention:
            query, key = args[:2] if len(args) > 1 else (kwargs["query"], kwargs["key"])
            scores = query.nbytes // query.shape[-1] * key.shape[-2]
            self._count(4 * scores, scores)  # what its plain form keeps, unseen from here
        return out

    def _count(self, kept: int, tensor: int) -> None:
        self.bytes += kept
        self.largest = max(self.largest, tensor)

    def name(self, parameter: Any) -> str | None:
        return self._names.get(id(parameter))

    def held(self, x: Tensor) -> Tensor:
        """x, which must stay as it is."""
        x = x.detach()
        self._versions.append((x, x._version))
        return x

    @property
    def overwritten(self) -> bool:
        """Whether a signal that is held was changed in place; no training could do with that."""
        return any(x._version != version for x, version in self._versions)

    def tapped(
        self, out: Tensor, d: int, *pieces: OuterUse | BiasUse | GainUse, channels: bool = False
    ) -> Tensor:
        """``out``, with its place in the graph noted."""
        if not out.requires_grad:
            # The graph begins here. The copy may be changed in place, which a leaf may not.
            out.requires_grad_(True)
            edge = torch.autograd.graph.get_gradient_edge(out)
            returned = out.clone()
        else:
            # The edge stays what it is when ``out`` is changed in place.
            edge = torch.autograd.graph.get_gradient_edge(out)
            returned = out
        dims = (out.numel() // d, d)
        use = Use(edge=edge, dims=dims, channels_first=channels, pieces=pieces)
        self.uses.append(use)
        return returned


Rule = Callable[..., Tensor]


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
    outer = OuterUse(name=name, axis=1, fixed=_rows(watch.held(input))) if name else None
    return watch.tapped(out, weight.shape[0], *([outer] if outer else []), *biases)


def _addmm(watch: Watch, func: Any, input: Any, mat1: Tensor, mat2: Any, **settings: Any) -> Tensor:
    """b + s W, the weight fan-in first, as transformers' Conv1D."""
    name, biases = watch.name(mat2), _bias(watch, input)
    flat_bias = not biases or input.ndim == 1
    if settings or not (name and flat_bias):
        return func(input, mat1, mat2, **settings)
    out = func(_own(watch, input), mat1, mat2.detach())
    outer = OuterUse(name=name, axis=0, fixed=watch.held(mat1))
    return watch.tapped(out, mat2.shape[1], outer, *biases)


def _matmul(watch: Watch, func: Any, input: Tensor, other: Any, **settings: Any) -> Tensor:
    """s W."""
    name = watch.name(other)
    if settings or not name or other.ndim != 2 or input.ndim < 2:
        return func(input, other, **settings)
    out = func(input, other.detach())
    outer = OuterUse(name=name, axis=0, fixed=_rows(watch.held(input)))
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
        return func(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    out = func(input, weight.detach(), padding_idx)
    index, kept = watch.held(input).flatten(), None
    if padding_idx is not None:
        kept = (index != padding_idx % len(weight)).nonzero()[:, 0]
        index = index[kept]
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
    if len(normalized_shape) != 1 or not input.requires_grad:
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
    gains = (GainUse(name=gain, fixed=x.detach().reshape(-1, n)),) if gain and x is not None else ()
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
        return func(input, weight, bias, stride, padding, dilation, groups)
    biases = _bias(watch, bias)
    out = func(input, weight.detach(), _own(watch, bias), stride, padding, dilation, groups)
    patches = _unfolded(input.detach(), weight.shape[2:], stride, padding, dilation)
    outer = OuterUse(name=name, axis=1, fixed=_rows(patches.mT))
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
    if not input.requires_grad or settings.get("inplace") or any(x is True for x in rest):
        return func(input, *rest, **settings)
    return pointwise(func, input, *rest, **settings)


_RULES: dict[Any, Rule] = {
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
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.conv1d: _conv,
    functional.conv2d: _conv,
}
