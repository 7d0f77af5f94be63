"""A block's kernels from its residual path's, for the three placements of layer norm.

*pre*, z' = ξ z + R(LN(z)), is [DYZ23]'s. *branch*, z' = ξ z + LN(R(z)), and *post*,
z' = LN(ξ z + R(z)), follow by the same mnemonics, eq. (1.140): what is normalised is in either a
sum with zero-mean weights in front, so it is a zero-mean Gaussian in each embedding index with a
kernel that does not fluctuate at n → ∞, and the cross terms with the skip vanish. Both close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from orderone.theory.layernorm import layer_norm
from orderone.theory.signal import Signal

Placement = Literal["pre", "branch", "post"]
Path = Callable[[Signal], Signal]


def block(z: Signal, path: Path, *, placement: Placement, xi: float, epsilon: float) -> Signal:
    """G and Θ of z', from those of z."""
    skip = z.scaled(xi)
    if placement == "pre":
        return skip + path(layer_norm(z, epsilon))
    if placement == "branch":
        return skip + layer_norm(path(z), epsilon)
    return layer_norm(skip + path(z), epsilon)
