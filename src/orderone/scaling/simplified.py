"""The paper's own simplification of the learning-rate factors: M dropped from W and X."""

from __future__ import annotations

from dataclasses import replace

from orderone.scaling.rule import Fans, Size


def without_M(group: str, tensor: Fans[Size]) -> Fans[Size]:
    """Fans that the factors of [DYZ23] §II.1 are made of: n² of W and X, however wide the MLP.

    Factors only: the variances (1.31)–(1.32) keep M.
    """
    if group in ("W", "gate"):
        return replace(tensor, fan_out=tensor.fan_in)
    if group == "X":
        return replace(tensor, fan_in=tensor.fan_out)
    return tensor
