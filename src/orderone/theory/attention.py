"""Attention block, over its own signal or over an encoder's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from orderone.theory.signal import Rates, Signal, merged
from orderone.theory.softmax import Sampling, softmax_averages


@dataclass(frozen=True, kw_only=True)
class AttentionConstants:
    """C_Q, C_K, C_V and C_U."""

    Q: float
    K: float
    V: float
    U: float


def attention_path(
    s: Signal,
    memory: Signal,
    *,
    legal: Bool[Tensor, "d t s"],
    C: AttentionConstants,
    rates: Rates,
    sampling: Sampling,
) -> Signal:
    """Kernels of r = U Ω V s̄, [DYZ23] eqs. (1.65), (1.151)–(1.163), (2.2)–(2.4).

    Queries see ``s``, keys and values ``memory``: the same signal, or for mixed attention the
    encoder's s̄, written with a bar.

        G = C_U C_V A[F̄]
        Θ = Λ_U C_V A[F̄] + Λ_V C_U A[F̄] + C_U C_V (Λ_K C_Q + Λ_Q C_K) F ∘ J[F̄]
            + C_U C_V (A[D̄] + C_Q C_K (F ∘ J[D̄] + D ∘ J[F̄]))

    J's values have kernel F̄. Terms in which one gradient passes q and the other k, or v, vanish
    with the means of Q, K, V and U; so does all between an encoder's and a decoder's gradient.
    """
    groups = list(memory.Theta)
    at = softmax_averages(
        s.G,
        memory.G,
        torch.stack([memory.Theta[group] for group in groups]),
        legal=legal,
        C_Q=C.Q,
        C_K=C.K,
        sampling=sampling,
    )
    UV = C.U * C.V
    G = UV * nearest_positive(at.A[0])
    additive = (
        rates.term("U", C.V * at.A[0]),
        rates.term("V", C.U * at.A[0]),
        rates.term("K", UV * at.through_keys[0]),
        rates.term("Q", UV * s.G * at.through_queries),
    )
    passed = {group: UV * (at.A[i] + C.K * at.through_keys[i]) for i, group in enumerate(groups, 1)}
    queried = {group: UV * C.Q * D * at.through_queries for group, D in s.Theta.items()}
    return Signal(G=G, Theta=merged(*additive, passed, queried))


def nearest_positive(K: Float[Tensor, "a a"]) -> Float[Tensor, "a a"]:
    """``K`` without its negative directions.

    Control variates are subtracted entry by entry, so that few draws may leave some, of the size
    of the standard error; σ's averages need a covariance. One that is not finite stays as it is.
    """
    if not bool(K.isfinite().all()):
        return K
    size, direction = torch.linalg.eigh(K)
    if float(size[0]) >= 0:
        return K
    positive = direction * size.clamp_min(0.0)
    return positive @ direction.T


def legal_keys(
    D: int,
    T: int,
    S: int,
    *,
    causal: bool,
    real: Bool[Tensor, "d s"] | None = None,
) -> Bool[Tensor, "d t s"]:
    """Which keys a query may attend to: not future ones where causal, none that is a pad."""
    legal = torch.ones(D, T, S, dtype=torch.bool)
    if causal:
        legal = legal.tril()
    return legal if real is None else legal & real[:, None, :]
