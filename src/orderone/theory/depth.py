"""Depth: G grows linearly, F comes to rest, [DYZ23] § I.1.C.

With layer norm before every residual path, each path adds a kernel of order one, so that

    G^(ℓ+1) = ξ² G^(ℓ) + Δ(F^(ℓ))

grows linearly in ℓ at ξ = 1: its diagonal by C_X ⟨σ²⟩ an MLP and by at most C_U C_V an attention
block. At infinite depth G/ℓ tends to Δ(F*), and F* = Δ(F*)_12 / √(Δ_11 Δ_22): the fixed F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.theory.attention import AttentionConstants, attention_path, legal_keys
from orderone.theory.kernels import BlockKernels
from orderone.theory.layernorm import layer_norm
from orderone.theory.mlp import mlp
from orderone.theory.signal import TOTAL, Rates, Signal
from orderone.theory.softmax import Sampling
from orderone.theory.spec import InitialConstants, LearningRates

NO_RATES = Rates(Lambda=dict.fromkeys(LearningRates.model_fields, 0.0), split=False)


@dataclass(frozen=True, kw_only=True)
class LinearGrowth:
    """G_aa, averaged over a, as intercept + slope · ℓ over the blocks of one kind."""

    slope: float
    intercept: float
    r2: float
    increments: tuple[float, ...]
    """What every block added."""


def growth(blocks: Sequence[BlockKernels], *, ending: str = "") -> LinearGrowth:
    """How the diagonal of G grows with ℓ over blocks whose names end so, the head aside.

    ``ending`` "mlp" takes one point a pair of attention and MLP, which add unequal amounts.
    """
    chosen = [b for b in blocks if b.name != "head" and b.name.endswith(ending)]
    if len(chosen) < 2:
        raise ConfigError(
            f"{len(chosen)} blocks whose names end in '{ending}'",
            expected="at least two to see growth",
            do="take more encoders",
        )
    y = torch.stack([b.G.diagonal().mean() for b in chosen])
    x = torch.arange(1.0, len(y) + 1, dtype=torch.float64)
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx * dy).sum() / dx.square().sum()
    residual = (dy - slope * dx).square().sum()
    total = dy.square().sum()
    return LinearGrowth(
        slope=slope.item(),
        intercept=(y.mean() - slope * x.mean()).item(),
        r2=1.0 if total == 0 else (1 - residual / total).item(),
        increments=tuple(y.diff().tolist()),
    )


def increment(
    F: Float[Tensor, "a a"],
    *,
    D: int,
    C: InitialConstants,
    sampling: Sampling,
    activation: str = "gelu",
    causal: bool = False,
) -> Float[Tensor, "a a"]:
    """Δ(F): what an attention and an MLP that both see F add to G, [DYZ23] (1.65), (1.77).

    At infinite depth a single pair no longer moves F, so both do see the same.
    """
    T = len(F) // D
    s = Signal(G=F, Theta={TOTAL: torch.zeros_like(F)})
    attention = attention_path(
        s,
        s,
        legal=legal_keys(D, T, T, causal=causal),
        C=AttentionConstants(Q=C.Q, K=C.K, V=C.V, U=C.U),
        rates=NO_RATES,
        sampling=sampling,
    )
    return attention.G + mlp(s, sigma=activation, C_W=C.W, C_X=C.X, rates=NO_RATES).G


def fixed_kernel(
    F: Float[Tensor, "a a"],
    *,
    D: int,
    C: InitialConstants,
    sampling: Sampling,
    activation: str = "gelu",
    causal: bool = False,
    tolerance: float = 1e-9,
    most: int = 1000,
) -> Float[Tensor, "a a"]:
    """F* = Δ(F*) normalised, reached from ``F`` by iteration.

    Every step uses the same draws, so the map is fixed and its rest does not jitter with them.
    """
    now = F
    for _ in range(most):
        added = increment(now, D=D, C=C, sampling=sampling, activation=activation, causal=causal)
        before, now = now, layer_norm(Signal(G=added, Theta={}), 0.0).G
        if float((now - before).abs().max()) <= tolerance:
            return now
    raise ConfigError(
        f"a kernel that still moves after {most} steps",
        expected=f"changes below {tolerance:g}",
        do="raise tolerance or most",
    )
