"""Backward passes that serve many cotangents at once.

torch takes gelu's and the layer norm's backward pass one cotangent after another, and computes σ'
anew for each. σ' and LN(z) are the same for all of them: here they are computed once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pointwise(torch.autograd.Function):
    """y = σ(w), whose backward pass is a product with σ'(w)."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None


class Normalised(torch.autograd.Function):
    """x = LN(z) over the last axis, given x and 1/σ: z̄ = (x̄ − mean(x̄) − x mean(x̄ ∘ x)) / σ."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(x, inverse)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x, inverse), g = ctx.saved_tensors, grads[0]
        centred = g - g.mean(-1, keepdim=True)
        return (centred - x * (g * x).mean(-1, keepdim=True)) * inverse, None, None


def pointwise(sigma: Any, w: Tensor, *arguments: Any, **settings: Any) -> Tensor:
    """σ(w) for any element-wise σ."""
    leaf = w.detach().requires_grad_(True)
    y = sigma(leaf, *arguments, **settings)
    (slope,) = torch.autograd.grad(y.sum(), leaf)
    applied: Any = Pointwise.apply(w, y.detach(), slope)
    return applied


def normalised(z: Tensor, epsilon: float) -> Tensor:
    """LN(z), [DYZ23] eq. (1.10)–(1.11)."""
    place = z.detach()
    x, _, inverse = torch.native_layer_norm(place, [z.shape[-1]], None, None, epsilon)
    applied: Any = Normalised.apply(z, x, inverse)
    return applied
