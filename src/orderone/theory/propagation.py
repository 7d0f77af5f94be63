"""Standard errors by batch means over independent recursions.

What one layer's draws get wrong is the next one's input, through layer norm, softmax and σ. Each of
R recursions therefore runs through all layers on draws of its own; their mean is the estimate and
their spread over √R its standard error, whatever the path that an error took. The mean keeps a bias
of order R/N, below the standard error's 1/√N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and its standard error, entry by entry."""

    value: Float[Tensor, "*k"]
    se: Float[Tensor, "*k"]


def batch_mean(runs: Sequence[Float[Tensor, "*k"]]) -> Estimate:
    """Mean of independent recursions."""
    first, R = runs[0], len(runs)
    # From the first run, so that recursions that all agree have an error of exactly 0.
    away = torch.stack([run - first for run in runs])
    mean = away.mean(0)
    spread = (away - mean).square().sum(0) / (R - 1)
    return Estimate(value=first + mean, se=(spread / R).sqrt())


def relative_error(estimate: Estimate) -> float:
    """The largest standard error, relative to the largest entry."""
    return float(estimate.se.max() / estimate.value.abs().max().clamp_min(1e-300))
