"""Where a model's parameters meet its signals, seen in one forward pass of some samples.

torch's own functions are watched. One that applies a parameter in a known way (a linear map, a
convolution, a lookup, a norm's gain and bias: ``tangent_rules``) is handed the detached parameter
instead, and what is needed to write the gradient from the backpropagated signal is noted: a *use*.
Every other path from a parameter, such as a bare addition or a transposed matrix, stays with
autograd. The gradient is the sum of both, whatever else shares the parameter.

Samples that are taken together are kept apart by ``torch.vmap``: the model sees one of them, and
what is noted here are the tensors beneath, with all samples as first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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


Rule = Callable[..., Any]
"""Called with the watch, the function and its arguments, in the function's place."""


class Watch(TorchFunctionMode):
    """While active, notes every use of ``parameters``, and how large the pass's tensors are.

    ``rules`` say, by torch's own functions, how each applies a parameter.

    ``root`` is a zero that requires a gradient, each sample's own: it starts the graph, and what
    it is added to has a value for each sample. ``own`` are each sample's own copies of the
    parameters, where several samples are taken together: autograd's paths begin there.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        rules: Mapping[Any, Rule],
        root: Float[Tensor, ""],
        own: Mapping[str, Tensor] | None = None,
        *,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._rules = rules
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
        rule = self._rules.get(func) if seen else None
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
