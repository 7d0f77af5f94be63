"""AdamW's neural tangent kernel, with the |g| that the theory predicts: [DYZ23] eq. (1.95).

    Ĥ = Σ_μ (λ̃_G / |g_μ|) ∂z_1/∂θ_μ ∂z_2/∂θ_μ

with |g_G| the root mean square, over all parameters of group G in all blocks and over inputs, of
the gradient of one output z_{a;i}. With Θ_G at Λ_G = 1 and λ_G the SGD factor at Λ_G = 1,
Σ_{μ∈G} (∂z/∂θ_μ)² = Θ_G / λ_G, hence |g_G|² = mean_a Θ_G,aa / (λ_G N_G) for N_G parameters. With
the factors (1.108)–(1.116), every width drops out:

    Θ̃ = Σ_G (Λ̃_G / γ_G) Θ_G,    γ_G² = mean_a Θ_G,aa / copies

where copies counts the tensors of a group (blocks), and the rows of a table (positions, words).
The paper's estimates |g| = 1/√n, 1/√(Mn), 1/√n_out are γ_G = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from orderone.theory.network import Network


def gradient_sizes(
    Theta: Mapping[str, Float[Tensor, "a a"]], copies: Mapping[str, int]
) -> dict[str, float]:
    """γ_G: r.m.s. |g_G| in units of the paper's estimate."""
    return {
        group: (max(float(K.diagonal().mean()), 0.0) / copies[group]) ** 0.5
        for group, K in Theta.items()
    }


def adamw_rates(Lambda: Mapping[str, float], sizes: Mapping[str, float]) -> dict[str, float]:
    """Λ̃_G / γ_G; 0 for a group without gradient, which AdamW does not move."""
    return {g: Lambda[g] / gamma if gamma > 0 else 0.0 for g, gamma in sizes.items()}


def copies(network: Network) -> dict[str, int]:
    """How many tensors, or rows of a table, the parameters of a group are."""
    spec, encoder, decoder = network.spec, network.encoder, network.decoder
    attentions = spec.encoders + 2 * spec.decoders
    mlps = spec.encoders + spec.decoders
    positions = encoder.T + spec.class_token + (0 if decoder is None else decoder.T)
    once = ("patch", "class_token", "head", "head_bias")
    return {
        **dict.fromkeys(once, 1),
        **dict.fromkeys(("Q", "K", "V", "U"), attentions),
        **dict.fromkeys(("W", "X"), mlps),
        "position": positions,
        "word": network.vocabulary,
    }
