"""What the recursion carries: a signal's kernel and its neural tangent kernel, by source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TOTAL = "total"


@dataclass(frozen=True, kw_only=True)
class Signal:
    """G and Θ over all (sample, position) pairs, sample-major.

    Of a layer-normalised signal these are F and D, of a residual path's output what it adds.
    """

    G: Float[Tensor, "a a"]
    Theta: Mapping[str, Float[Tensor, "a a"]]
    """By parameter group, each at Λ = 1; or all of it under ``TOTAL``."""

    def __add__(self, other: Signal) -> Signal:
        """Of a sum of two signals, the second with fresh zero-mean weights: no cross terms."""
        return Signal(G=self.G + other.G, Theta=merged(self.Theta, other.Theta))

    def scaled(self, xi: float) -> Signal:
        """Of ξ z: both kernels are quadratic."""
        return self.mapped(lambda K: xi * xi * K)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Signal:
        """The same linear map of G and of every part of Θ."""
        return Signal(G=change(self.G), Theta={g: change(K) for g, K in self.Theta.items()})


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Λ_G by group, and whether Θ is kept apart by group: each part costs products of its own."""

    Lambda: Mapping[str, float]
    split: bool

    def term(self, group: str, kernel: Float[Tensor, "a a"]) -> dict[str, Float[Tensor, "a a"]]:
        """A group's additive contribution to Θ, given at Λ_G = 1."""
        return {group: kernel} if self.split else {TOTAL: self.Lambda[group] * kernel}

    def total(self, Theta: Mapping[str, Float[Tensor, "a a"]]) -> Float[Tensor, "a a"]:
        """Σ_G Λ_G Θ_G."""
        if not self.split:
            return Theta[TOTAL]
        return torch.stack([self.Lambda[group] * K for group, K in Theta.items()]).sum(0)


def merged(*parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums by group."""
    result: dict[str, Tensor] = {}
    for part in parts:
        for group, kernel in part.items():
            result[group] = result[group] + kernel if group in result else kernel
    return result
