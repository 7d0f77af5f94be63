"""One parameter of a plan: what it is, how it starts, how it learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from orderone.scaling.constants import Distribution
from orderone.scaling.roles import Start

OptimizerKind = Literal["adamw", "sgd"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A parameter's line in the plan's table."""

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    lookup: bool
    head: bool
    start: Start
    init_std: float | None
    """Deviation at the start; 0 of zeros and ones, None of what stays as the model made it."""
    distribution: Distribution
    lr_factor: float
    """λ̃, of AdamW."""
    sgd_factor: float
    """λ, of SGD."""
    decays: bool
    reason: str
    also: tuple[str, ...] = ()
    """Other names of the same tensor."""
    zero_row: int | None = None
    """Row that stays zero: the [pad] word."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def decay_factor(self) -> float:
        """Multiplies the weight decay of an AdamW group, so that η·wd is the same for all."""
        return 1 / self.lr_factor if self.decays else 0.0

    def factor(self, optimizer: OptimizerKind) -> float:
        """Multiplies the learning rate."""
        return self.lr_factor if optimizer == "adamw" else self.sgd_factor
