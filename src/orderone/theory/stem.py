"""Stems: from inputs to G^(1) and Θ^(1), [DYZ23] eqs. (1.40)–(1.45) and (1.122)–(1.130)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orderone.theory.signal import Rates, Signal, merged


def patch_kernel(x: Float[Tensor, "b t n_patch"]) -> Float[Tensor, "a a"]:
    """G^(0) = (1/n_patch) Σ_j x_j x_j over all (sample, patch) pairs, [DYZ23] eq. (1.40)."""
    rows = x.double().flatten(0, 1)
    return rows @ rows.T / rows.shape[1]


def token_kernel(tokens: Int[Tensor, "b t"], pad: int | None = None) -> Float[Tensor, "a a"]:
    """G^(0): 1 for the same token, else 0, [DYZ23] eq. (1.44); 0 for [pad], whose row is zero."""
    flat = tokens.flatten()
    same = flat[:, None] == flat
    if pad is not None:
        same = same & (flat != pad)
    return same.double()


def position_kernel(D: int, T: int) -> Float[Tensor, "a a"]:
    """δ_{t1 t2}: b^PE is shared by all samples."""
    return torch.eye(T, dtype=torch.float64).repeat(D, D)


def stem(
    G0: Float[Tensor, "a a"],
    *,
    D: int,
    group: str,
    C_input: float,
    C_PE: float,
    rates: Rates,
    C_class: float | None = None,
) -> Signal:
    """z^(1) = W x + b^PE: G = C G^(0) + C_PE δ, Θ = Λ G^(0) + Λ_PE δ, [DYZ23] (1.41), (1.45).

    With ``C_class`` a class token, one trained vector, comes before each sample's inputs (1.8).
    """
    parts = {group: (C_input, G0)}
    positions = len(G0) // D
    if C_class is not None:
        inputs, first = with_class_token(G0.view(D, positions, D, positions))
        positions += 1
        parts = {group: (C_input, inputs), "class_token": (C_class, first)}
    parts["position"] = (C_PE, position_kernel(D, positions))
    return Signal(
        G=torch.stack([C * K for C, K in parts.values()]).sum(0),
        Theta=merged(*(rates.term(name, K) for name, (_, K) in parts.items())),
    )


def with_class_token(
    inputs: Float[Tensor, "d t d t"],
) -> tuple[Float[Tensor, "a a"], Float[Tensor, "a a"]]:
    """The inputs' kernel and the class token's, over positions with the class token first."""
    D, T = inputs.shape[:2]
    padded = torch.zeros(D, T + 1, D, T + 1, dtype=torch.float64)
    padded[:, 1:, :, 1:] = inputs
    first = torch.zeros_like(padded)
    first[:, 0, :, 0] = 1.0
    a = D * (T + 1)
    return padded.view(a, a), first.view(a, a)
