"""Gradients of some samples' outputs with respect to every parameter, in structured form."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.core.errors import ModelError
from orderone.probes.tangent_rules import RULES
from orderone.probes.tangent_terms import Gradient, Outer, Part, gradient, structured
from orderone.probes.tangent_together import ApartError, together
from orderone.probes.tangent_uses import BiasUse, GainUse, OuterUse, Use, Watch

Parts = dict[str, Part]
"""By parameter."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some outputs: of one sample any positions, of several samples all; and output indices."""

    samples: slice
    positions: slice
    indices: slice

    @property
    def rows(self) -> int:
        """Scalar outputs."""
        return length(self.samples) * length(self.positions) * length(self.indices)


class Pass:
    """A forward pass of some samples, whose outputs can be taken back to the parameters by blocks.

    Each sample is run as if by itself: then all that a use sees belongs to it, in whatever order
    the model lays out its tensors. ``run`` is given tensors of one sample, their first axis 1.
    Several samples that would keep more than ``most`` bytes each are refused by an ApartError.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Tensor]], Tensor],
        tensors: Sequence[Tensor],
        parameters: Mapping[str, nn.Parameter],
        *,
        weights: Mapping[str, Tensor] | None = None,
        most: int | None = None,
    ) -> None:
        self._run = run
        self._parameters = parameters
        self._weights = weights
        self.samples = len(tensors[0])
        # Attention's fused kernels have no backward pass for many cotangents at once.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            if self.samples == 1:
                self.y, self._leaves = self._alone(tensors), dict(parameters)
            else:
                self.y, self._leaves = self._together(tensors, most)
        if not self.y.requires_grad or self.y.ndim < 3 or self.y.shape[1] != 1:
            raise ModelError(
                f"an output of shape {tuple(self.y.shape[1:])} for one sample"
                + ("" if self.y.requires_grad else " without a gradient"),
                expected="a differentiable tensor (samples, ..., outputs)",
                do="choose or reshape the output with output=...",
            )
        reached = _reached(self.y)
        self._autograd = [name for name, leaf in self._leaves.items() if id(leaf) in reached]
        if self.samples > 1 and any(id(p) in reached for p in parameters.values()):
            # A path to it is older than the pass, or hidden from us: it is one for all samples.
            raise ApartError("a parameter that samples share")

    def _alone(self, tensors: Sequence[Tensor]) -> Tensor:
        watch = Watch(self._parameters, RULES, torch.zeros((), requires_grad=True))
        return self._watched(watch, tensors)[None]

    def _together(
        self, tensors: Sequence[Tensor], most: int | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        def one(each: Sequence[Tensor], root: Tensor, own: Mapping[str, Tensor]) -> Tensor:
            watch = Watch(self._parameters, RULES, root, own, most=most)
            return self._watched(watch, [x[None] for x in each])

        roots = torch.zeros(self.samples, device=tensors[0].device, requires_grad=True)
        return together(one, tensors, roots, self._parameters)

    def _watched(self, watch: Watch, tensors: Sequence[Tensor]) -> Tensor:
        with watch:
            y = self._run(tensors)
        if watch.overwritten:
            raise ModelError(
                "a signal that is changed in place after a parameter was applied to it",
                expected="a model that can be trained",
                do="make the change out of place",
            )
        self.uses = watch.uses
        self.bytes, self.largest = watch.bytes, watch.largest
        return y

    def parts(self, positions: slice, indices: slice, *, of: tuple[int, int]) -> Parts:
        """Gradients of some of every sample's outputs, seen as ``of`` positions × indices."""
        dims = length(positions), length(indices)
        cotangents = self.y.new_zeros(*dims, *of)
        p, i = torch.arange(dims[0])[:, None], torch.arange(dims[1])
        cotangents[p, i, p + positions.start, i + indices.start] = 1
        places = [use.edge for use in self.uses] + [self._leaves[name] for name in self._autograd]
        grads = _taken_back(self.y.reshape(self.samples, *of), places, cotangents.flatten(0, 1))
        deltas, rest = grads[: len(self.uses)], grads[len(self.uses) :]
        direct = {
            name: _accurate(g).reshape(*dims, self.samples, -1)
            for name, g in zip(self._autograd, rest, strict=True)
            if g is not None
        }
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

    def looked_up(self) -> dict[str, set[int]]:
        """The rows that occur of each table that is nothing but looked up in."""
        rows: dict[str, set[int]] = {}
        others = set(self._autograd)
        for piece in (piece for use in self.uses for piece in use.pieces):
            if isinstance(piece, OuterUse) and piece.lookup:
                index = piece.fixed if piece.kept is None else piece.fixed[piece.kept]
                rows.setdefault(piece.name, set()).update(index.flatten().tolist())
            else:
                others.add(piece.name)
        return {name: each for name, each in rows.items() if name not in others}

    def _gathered(
        self,
        deltas: Sequence[Tensor | None],
        direct: dict[str, Tensor],
        dims: tuple[int, int],
    ) -> Parts:
        """All uses of each parameter together."""
        sums = dict(direct)
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


def length(part: slice) -> int:
    """Places in a slice with both its ends."""
    return part.stop - part.start


def _taken_back(
    y: Float[Tensor, "s p i"], places: Sequence[Any], cotangents: Float[Tensor, "r p i"]
) -> list[Tensor | None]:
    """∂y/∂place of R outputs of every sample, R first; None where no output depends on it."""
    reached: list[bool] = []

    def one(cotangent: Tensor) -> tuple[Tensor, ...]:
        given = torch.autograd.grad(
            y, places, cotangent.expand_as(y), allow_unused=True, retain_graph=True
        )
        found = cast("tuple[Tensor | None, ...]", given)  # None is left out of torch's stubs
        reached[:] = [g is not None for g in found]
        return tuple(g for g in found if g is not None)

    with warnings.catch_warnings():
        # Of an operation whose backward pass is taken one cotangent after another: so it is.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        left = iter(torch.vmap(one)(cotangents))
    return [next(left) if there else None for there in reached]


def _reached(y: Tensor) -> set[int]:
    """Identities of the leaves that autograd has a path to."""
    found: set[int] = set()
    seen: set[Any] = set()
    left: list[Any] = [y.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(id(getattr(node, "variable", None)))
        left.extend(child for child, _ in node.next_functions)
    return found


def _sort(
    use: Use,
    delta: Float[Tensor, "p i s t d"],
    sums: dict[str, Tensor],
    outers: dict[str, list[Outer]],
) -> None:
    """What one use adds to each of its parameters."""
    for piece in use.pieces:
        if isinstance(piece, OuterUse):
            kept = delta if piece.kept is None else delta * piece.kept[..., None]
            fixed = piece.fixed if piece.lookup else _accurate(piece.fixed)
            outer = Outer(axis=piece.axis, fixed=fixed, delta=kept)
            outers.setdefault(piece.name, []).append(outer)
            continue
        value = _elementwise(piece, delta)
        sums[piece.name] = sums[piece.name] + value if piece.name in sums else value


def _elementwise(
    piece: BiasUse | GainUse, delta: Float[Tensor, "p i s t d"]
) -> Float[Tensor, "p i s d"]:
    if isinstance(piece, BiasUse):
        return delta.sum(3)
    return torch.einsum("pistd,std->pisd", delta, _accurate(piece.fixed))


def _accurate(x: Tensor) -> Tensor:
    """At least float32: products of bfloat16 would lose what digits there are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
