"""MLP block."""

from __future__ import annotations

from orderone.theory.activation import Activation
from orderone.theory.gaussian import averages
from orderone.theory.signal import Rates, Signal, merged


def mlp(s: Signal, *, sigma: str | Activation, C_W: float, C_X: float, rates: Rates) -> Signal:
    """Kernels of r = X σ(W s), [DYZ23] eqs. (1.77) and (1.168)–(1.173); averages at C_W F.

    G = C_X ⟨σσ⟩
    Θ = Λ_X ⟨σσ⟩ + Λ_W C_X ⟨σ'σ'⟩ ∘ F + C_X C_W ⟨σ'σ'⟩ ∘ D
    """
    at = averages(sigma, C_W * s.G)
    additive = [rates.term("X", at.values), rates.term("W", C_X * at.slopes * s.G)]
    passed = {group: C_X * C_W * at.slopes * D for group, D in s.Theta.items()}
    return Signal(G=C_X * at.values, Theta=merged(*additive, passed))
