"""Gradients of one sample's outputs with respect to every parameter, in structured form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.core.errors import ModelError
from orderone.probes.tangent_terms import Gradient, Outer, Part, gradient, structured
from orderone.probes.tangent_uses import BiasUse, GainUse, OuterUse, Use, Watch

Parts = dict[str, Part]
"""By parameter."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some outputs of one sample: positions, and among each the output indices."""

    sample: int
    positions: slice
    indices: slice

    @property
    def rows(self) -> int:
        """Scalar outputs."""
        return _length(self.positions) * _length(self.indices)


class SamplePass:
    """One sample's forward pass, whose outputs can be taken back to the parameters block by block.

    A sample by itself: then all that a use sees belongs to it, in whatever order the model lays out
    its tensors.
    """

    def __init__(
        self,
        run: Callable[[], Tensor],
        parameters: Mapping[str, nn.Parameter],
        *,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._parameters = parameters
        self._weights = weights
        # Attention's fused kernels have no backward pass for many cotangents at once.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), Watch(parameters) as watch:
            y = run()
        if watch.overwritten:
            raise ModelError(
                "a signal that is changed in place after a parameter was applied to it",
                expected="a model that can be trained",
                do="make the change out of place",
            )
        if not y.requires_grad or y.ndim < 2 or y.shape[0] != 1:
            raise ModelError(
                f"an output of shape {tuple(y.shape)} for one sample"
                + ("" if y.requires_grad else " without a gradient"),
                expected="a differentiable tensor (samples, ..., outputs)",
                do="choose or reshape the output with output=...",
            )
        self.y = y
        self.uses = watch.uses
        self.bytes, self.largest = watch.bytes, watch.largest
        self._autograd = _reached(y, parameters)

    def parts(self, positions: slice, indices: slice, *, of: tuple[int, int]) -> Parts:
        """Gradients of a block of outputs, the outputs seen as ``of`` positions × indices."""
        dims = _length(positions), _length(indices)
        cotangents = self.y.new_zeros(*dims, *of)
        p, i = torch.arange(dims[0])[:, None], torch.arange(dims[1])
        cotangents[p, i, p + positions.start, i + indices.start] = 1
        leaves = [self._parameters[name] for name in self._autograd]
        found = torch.autograd.grad(
            self.y.reshape(of),
            [use.edge for use in self.uses] + leaves,
            cotangents.flatten(0, 1),
            is_grads_batched=True,
            allow_unused=True,
            retain_graph=True,
        )
        # None for what no output depends on, which torch's stubs leave out.
        grads = cast("tuple[Tensor | None, ...]", found)
        deltas, rest = grads[: len(self.uses)], grads[len(self.uses) :]
        direct = {n: g for n, g in zip(self._autograd, rest, strict=True) if g is not None}
        return self._gathered(deltas, direct, dims)

    def numbers(self) -> list[int]:
        """Numbers that each parameter's part holds for one output."""
        direct = set(self._autograd) if self._weights is None else set(self._parameters)
        outers: dict[str, int] = {}
        for use in self.uses:
            for piece in use.pieces:
                if isinstance(piece, OuterUse):
                    outers[piece.name] = outers.get(piece.name, 0) + use.dims[0] * use.dims[1]
                else:
                    direct.add(piece.name)
        sizes = {name: self._parameters[name].numel() for name in direct | outers.keys()}
        return [n if name in direct else min(n, outers[name]) for name, n in sizes.items()]

    def _gathered(
        self, deltas: tuple[Tensor | None, ...], direct: dict[str, Tensor], dims: tuple[int, int]
    ) -> Parts:
        """All uses of each parameter together."""
        sums = {name: _accurate(g).reshape(*dims, -1) for name, g in direct.items()}
        outers: dict[str, list[Outer]] = {}
        for use, delta in zip(self.uses, deltas, strict=True):
            if delta is not None:
                _sort(use, _accurate(use.columns(delta)).unflatten(0, dims), sums, outers)
        return {
            name: self._part(name, sums.get(name), outers.get(name, []))
            for name in self._parameters
            if name in sums or name in outers
        }

    def _part(self, name: str, direct: Tensor | None, outers: list[Outer]) -> Part:
        shape = self._parameters[name].shape
        part: Part = structured(tuple(outers), shape) if outers and direct is None else ()
        if direct is not None:
            value = direct + gradient(tuple(outers), shape).value if outers else direct
            part = Gradient(value=value)
        if self._weights is not None:
            # Weights of single parameters leave nothing of the structure.
            root = self._weights[name].sqrt().flatten()
            value = gradient(part, shape).value
            part = Gradient(value=value * root.to(value.dtype))
        return part


def _reached(y: Tensor, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Parameters that autograd itself has a path to."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[str, None] = {}
    seen: set[Any] = set()
    left: list[Any] = [y.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = names.get(id(getattr(node, "variable", None)))
        if name:
            found[name] = None
        left.extend(child for child, _ in node.next_functions)
    return [name for name in parameters if name in found]


def _sort(
    use: Use,
    delta: Float[Tensor, "p i t d"],
    sums: dict[str, Tensor],
    outers: dict[str, list[Outer]],
) -> None:
    """What one use adds to each of its parameters."""
    for piece in use.pieces:
        if isinstance(piece, OuterUse):
            kept = delta if piece.kept is None else delta[:, :, piece.kept]
            fixed = piece.fixed if piece.fixed.ndim == 1 else _accurate(piece.fixed)
            outer = Outer(axis=piece.axis, fixed=fixed, delta=kept)
            outers.setdefault(piece.name, []).append(outer)
            continue
        value = _elementwise(piece, delta)
        sums[piece.name] = sums[piece.name] + value if piece.name in sums else value


def _elementwise(
    piece: BiasUse | GainUse, delta: Float[Tensor, "p i t d"]
) -> Float[Tensor, "p i d"]:
    if isinstance(piece, BiasUse):
        return delta.sum(2)
    return torch.einsum("pitd,td->pid", delta, _accurate(piece.fixed))


def _accurate(x: Tensor) -> Tensor:
    """At least float32: products of bfloat16 would lose what digits there are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _length(part: slice) -> int:
    return part.stop - part.start
