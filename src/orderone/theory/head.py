"""Heads: from s^(L−1) to the outputs, [DYZ23] eqs. (1.80)–(1.84) and (1.178)–(1.190)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from orderone.theory.signal import Rates, Signal, merged

Pool = Literal["none", "mean", "class"]


def head(s: Signal, *, C: float, group: str, bias: bool, rates: Rates) -> Signal:
    """G = C F and Θ = Λ F + Λ_b + C D.

    A tied language head has ``group`` word and C_WE; that W^WE is the stem's too adds a contact
    term to the one output that is the input's own token, which is neglected, [DYZ23] (1.187).
    """
    additive = [rates.term(group, s.G)]
    if bias:
        additive.append(rates.term("head_bias", torch.ones_like(s.G)))
    passed = {name: C * D for name, D in s.Theta.items()}
    return Signal(G=C * s.G, Theta=merged(*additive, passed))


def pooled(z: Signal, pool: Pool, D: int) -> Signal:
    """The output's kernels over samples: averaged over positions (1.81), or at the class token."""
    if pool == "none":
        return z
    rows = pooling(pool, D, len(z.G) // D)
    return z.mapped(lambda K: rows @ K @ rows.T)


def pooling(pool: Pool, D: int, T: int) -> Float[Tensor, "b a"]:
    """The linear map over positions, as a matrix."""
    weights = torch.full((1, T), 1 / T, dtype=torch.float64)
    if pool == "class":
        weights = torch.eye(T, dtype=torch.float64)[:1]
    return torch.kron(torch.eye(D, dtype=torch.float64), weights)
