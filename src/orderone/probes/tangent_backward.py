"""Backward passes that serve many cotangents at once.

σ' and LN(z) are the same for all cotangents: here they are computed once, where torch computes σ'
anew for each. All of it is element by element or over the last axis, so that samples that are taken
together (``torch.vmap``) are but one more axis in front.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pointwise(torch.autograd.Function):
    """y = σ(w), whose backward pass is a product with σ'(w)."""

    @staticmethod
    def forward(w: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        applied: Any = Pointwise.apply(*_in_front(inputs, in_dims))
        return applied, 0


class Normalised(torch.autograd.Function):
    """x = LN(z) over the last axis, given x and 1/σ: z̄ = (x̄ − mean(x̄) − x mean(x̄ ∘ x)) / σ."""

    @staticmethod
    def forward(z: Tensor, x: Tensor, inverse: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x, inverse), g = ctx.saved_tensors, grads[0]
        along = (g * x).mean(-1, keepdim=True)
        centred = g - g.mean(-1, keepdim=True)
        return centred.sub_(x * along).mul_(inverse), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        applied: Any = Normalised.apply(*_in_front(inputs, in_dims))
        return applied, 0


def _in_front(inputs: tuple[Tensor, ...], in_dims: tuple[int | None, ...]) -> list[Tensor]:
    """The samples' axis first in each; all inputs here come of one signal, and have it."""
    places = [dim for dim in in_dims if dim is not None]
    assert len(places) == len(inputs)
    return [x.movedim(dim, 0) for x, dim in zip(inputs, places, strict=True)]


def pointwise(w: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """y = σ(w), of which σ'(w) is known."""
    applied: Any = Pointwise.apply(w, y, slope)
    return applied


def normalised(z: Tensor, epsilon: float) -> Tensor:
    """LN(z), [DYZ23] eq. (1.10)–(1.11)."""
    place = z.detach()
    x, _, inverse = torch.native_layer_norm(place, [z.shape[-1]], None, None, epsilon)
    applied: Any = Normalised.apply(z, x, inverse)
    return applied
