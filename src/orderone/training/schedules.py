"""Schedules: one multiplier a step for all groups, so that their learning rates keep ratios.

A multiplier is a function of the step alone: nothing of it needs saving, and a resumed run has it
to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import ConfigError

Kind = Literal["constant", "cosine", "linear", "inverse-sqrt"]
Multiplier = Callable[[int], float]
"""Of the update t = 0, 1, 2, …"""


def multiplier(kind: Kind, *, steps: int, warmup: int = 0, floor: float = 0.0) -> Multiplier:
    """(t + 1)/warmup while t < warmup; then, with u = (t − warmup)/(steps − warmup) in [0, 1],

    constant      1
    cosine        floor + (1 − floor)(1 + cos πu)/2
    linear        floor + (1 − floor)(1 − u)
    inverse-sqrt  √(max(1, warmup)/(t + 1))
    """

    def value(t: int) -> float:
        if t < warmup:
            return (t + 1) / warmup
        if kind == "constant":
            return 1.0
        if kind == "inverse-sqrt":
            return math.sqrt(max(1, warmup) / (t + 1))
        u = min(1.0, (t - warmup) / max(1, steps - warmup))
        fall = (1 + math.cos(math.pi * u)) / 2 if kind == "cosine" else 1 - u
        return floor + (1 - floor) * fall

    return value


class Schedule:
    """Sets every group's rate to its own, as found here, times the multiplier."""

    def __init__(self, optimizer: Optimizer, multiplier: Multiplier) -> None:
        self._groups = optimizer.param_groups
        self._rates = [_number(group["lr"]) for group in self._groups]
        self._multiplier = multiplier

    def apply(self, t: int) -> float:
        """Rates of the update t; returns the multiplier."""
        value = self._multiplier(t)
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate * value
        return value


def _number(rate: float | Tensor) -> float:
    if isinstance(rate, Tensor):
        raise ConfigError(
            "a learning rate that is a tensor",
            expected="a number, which a schedule multiplies",
            do="give lr as a float",
        )
    return rate
