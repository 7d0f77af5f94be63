"""Layer norm's action on both kernels."""

from __future__ import annotations

from orderone.theory.signal import Signal


def layer_norm(z: Signal, epsilon: float) -> Signal:
    """F and D of s = LN(z), [DYZ23] eqs. (1.53) and (1.139).

    F_12 = G_12 / √((G_11+ε)(G_22+ε)), D_12 = Θ_12 / √((G_11+ε)(G_22+ε)), up to O(1/n): the mean
    over n zero-mean features drops out, and ∂s_j/∂z_i is δ_ij / √(G+ε).
    """
    scale = (z.G.diagonal() + epsilon).rsqrt()
    return z.mapped(lambda K: scale[:, None] * K * scale)
