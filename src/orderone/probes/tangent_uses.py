"""Where a model's parameters meet its signals, seen in one forward pass of some samples.

torch's own functions are watched. One that applies a parameter in a known way (a linear map, a
convolution, a lookup, a norm's gain and bias) is handed the detached parameter instead, and what is
needed to write the gradient from the backpropagated signal is noted: a *use*. Every other path from
a parameter, such as a bare addition or a transposed matrix, stays with autograd. The gradient is
the sum of both, whatever else shares the parameter.

Samples that are taken together are kept apart by ``torch.vmap``: the model sees one of them, and
what is noted here are the tensors beneath, with all samples as first axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.probes.tangent_backward import normalised, pointwise
from orderone.probes.tangent_together import ApartError, level, samples_beneath

Axis = int
"""Of a parameter seen as a matrix: 0 rows, 1 columns."""


@dataclass(frozen=True, kw_only=True)
class OuterUse:
    """∂f/∂W = Σ_t δ_t ⊗ x_t: x lies along ``axis`` of the matrix, δ along the other."""

    name: str
    axis: Axis
    fixed: Shaped[Tensor, "s t *f"]
    """x, T × fan-in a sample; or, of a lookup, the T looked-up indices: x is then one-hot."""
    kept: Bool[Tensor, "s t"] | None = None
    """The t that count: a lookup of the padding index has no gradient."""

    @property
    def lookup(self) -> bool:
        """Whether x is one-hot."""
        return self.fixed.ndim == 2


@dataclass(frozen=True, kw_only=True)
class BiasUse:
    """∂f/∂b = Σ_t δ_t."""

    name: str


@dataclass(frozen=True, kw_only=True)
class GainUse:
    """∂f/∂g = Σ_t δ_t ∘ x_t, x the normalised signal, T × n."""

    name: str
    fixed: Float[Tensor, "s t n"]


@dataclass(frozen=True, kw_only=True)
class Use:
    """One place where parameters are applied; δ is the gradient of an output with respect to it."""

    edge: Any
    """The place in autograd's graph (torch.autograd.graph.GradientEdge)."""
    samples: int | None
    """The samples' axis at that place; None where there is but one sample, without an axis."""
    dims: tuple[int, int]
    """T and d, of one sample's δ as a matrix."""
    channels_first: bool
    pieces: tuple[OuterUse | BiasUse | GainUse, ...]

    def columns(self, delta: Tensor) -> Float[Tensor, "r s t d"]:
        """δ of R outputs of every sample, as matrices."""
        delta = delta[:, None] if self.samples is None else delta.movedim(self.samples + 1, 1)
        if self.channels_first:
            delta = delta.movedim(3, -1)  # (R, S, 1, channels, ...): the model has its own axis
        return delta.reshape(*delta.shape[:2], *self.dims)


class Watch(TorchFunctionMode):
    """While active, notes every use of ``parameters``, and how large the pass's tensors are.

    ``root`` is a zero that requires a gradient, each sample's own: it starts the graph, and what
    it is added to has a value for each sample. ``own`` are each sample's own copies of the
    parameters, where several samples are taken together: autograd's paths begin there.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        root: Float[Tensor, ""],
        own: Mapping[str, Tensor] | None = None,
        *,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._root = root
        self._own = own
        self._most = most
        self._level = level()
        self._versions: list[tuple[Tensor, int]] = []
        self.uses: list[Use] = []
        self.bytes = 0
        self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Where the model itself calls vmap or grad, what it does there is left to autograd.
        seen = torch.is_grad_enabled() and level() == self._level
        rule = _RULES.get(func) if seen else None
        out = rule(self, func, *args, **kwargs) if rule else self.plainly(func, *args, **kwargs)
        if isinstance(out, Tensor):
            self.count(out.nbytes if not out._is_view() else 0, out.nbytes)
        return out

    def count(self, kept: int, tensor: int) -> None:
        """Notes what a step of the pass keeps, and its largest tensor."""
        self.bytes += kept
        if self._most is not None and self.bytes > self._most:
            raise ApartError("more than the memory has room for")
        self.largest = max(self.largest, tensor)

    def plainly(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The function itself, whose parameters stay with autograd."""
        if self._own is None:
            return func(*args, **kwargs)
        return func(
            *(self._separate(x) for x in args),
            **{key: self._separate(x) for key, x in kwargs.items()},
        )

    def _separate(self, x: Any) -> Any:
        """Each sample's own copy of a parameter, alone or in a list."""
        if type(x) in (list, tuple):
            return type(x)(self._separate(each) for each in x)
        name = self.name(x)
        return self._own[name] if self._own is not None and name else x

    def name(self, parameter: Any) -> str | None:
        return self._names.get(id(parameter))

    def fixed(self, x: Tensor) -> Shaped[Tensor, "s t *f"]:
        """x of all samples."""
        beneath, axis = samples_beneath(x.detach())
        if self._own is None:
            return beneath[None]
        count = len(samples_beneath(self._root)[0])
        return beneath.expand(count, *x.shape) if axis is None else beneath.movedim(axis, 0)

    def held(self, x: Tensor) -> Tensor:
        """x, which must stay as it is."""
        x = x.detach()
        beneath = samples_beneath(x)[0]
        self._versions.append((beneath, beneath._version))
        return x

    @property
    def overwritten(self) -> bool:
        """Whether a signal that is held was changed in place; no training could do with that."""
        return any(x._version != version for x, version in self._versions)

    def tapped(
        self, out: Tensor, d: int, *pieces: OuterUse | BiasUse | GainUse, channels: bool = False
    ) -> Tensor:
        """``out``, with its place in the graph noted."""
        if not self.is_tracked(out):
            out = out + self._root.to(out.dtype)  # the graph begins here
        beneath, axis = samples_beneath(out)
        # The edge stays what it is when ``out`` is changed in place.
        use = Use(
            edge=torch.autograd.graph.get_gradient_edge(beneath),
            samples=axis,
            dims=(out.numel() // d, d),
            channels_first=channels,
            pieces=pieces,
        )
        self.uses.append(use)
        return out

    def is_tracked(self, x: Tensor) -> bool:
        """Whether autograd has a path to it, by itself for every sample."""
        beneath, axis = samples_beneath(x)
        return beneath.requires_grad and (self._own is None or axis is not None)


Rule = Callable[..., Any]


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
    return pointwise(func, input, *rest, **settings)


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
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The arguments of ``scaled_dot_product_attention``; torch's own reference for it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The reference adds its mask: of a boolean one it would add 1 where keys are seen.
        closed = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = closed.masked_fill(~attn_mask, -torch.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _agreed(watch: Watch, func: Any, x: Tensor) -> bool:
    """A choice of path: where all samples make the same one, it is each one's own."""
    beneath, axis = samples_beneath(x)
    if axis is None:
        return func(x)
    yes = beneath != 0
    if yes.any() and not yes.all():
        raise ApartError("samples of which each takes a path of its own")
    return bool(yes.all())


_RULES: dict[Any, Rule] = {
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
