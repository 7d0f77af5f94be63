"""A base width: factors relative to it, and C_G from what a model starts as there.

At the base width a tuned recipe is then reproduced exactly, weights included, and other widths
follow from it by the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.parameter_names import clean_name
from orderone.scaling.constants import Distribution
from orderone.scaling.matching import required_module
from orderone.scaling.roles import Placement, Roles
from orderone.scaling.width import at_width

Make = Callable[[int], nn.Module]

# The largest of many uniform numbers is √3 deviations; of 64 normal ones it is beyond 1.9 in all
# but one case in 40.
_UNIFORM_AT_LEAST = 64
_UNIFORM_BELOW = 1.76


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a tensor of the base model starts."""

    std: float
    """Root mean square without the zero row; 0 of a constant tensor."""
    distribution: Distribution


@dataclass(frozen=True, kw_only=True)
class Base:
    """A model at its base width, placed and measured."""

    n: int
    rows: dict[str, Placement]
    measured: dict[str, Measured]
    own_multiplier: float


def base_model(model: nn.Module, base_width: int, make: Make | None) -> nn.Module:
    """The model at its base width; torch's generators are left as they were."""
    if base_width < 1:
        raise ConfigError(
            f"base_width = {base_width}", expected="a positive width", do="correct base_width"
        )
    # Seeded, so that the measured constants are the same in every process and every run.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if make is None:
            return at_width(model, base_width)
        return required_module(make(base_width), f"make({base_width})")


def measure(model: nn.Module, roles: Roles) -> dict[str, Measured]:
    """Of every placed tensor."""
    parameters = {clean_name(name): p for name, p in model.named_parameters()}
    return {row.name: _measured(parameters[row.name], row.zero_row) for row in roles.rows}


def require_comparable(roles: Roles, base: Roles, base_width: int) -> None:
    """The same parameters at another width, or one line that says what is not so."""
    here, there = ({row.name: row for row in each.rows} for each in (roles, base))
    odd = sorted(set(here) ^ set(there))
    if odd:
        raise ModelError(
            f"{len(odd)} parameters in only one of the model and the model at the base width,"
            f" such as {odd[0]}",
            expected="the same parameters at both widths",
            do="let make(width) change widths alone",
        )
    if base_width != roles.n and all(here[name].shape == there[name].shape for name in here):
        raise ConfigError(
            f"base_width = {base_width}, with which no parameter's shape changes",
            expected="a width that scales the model",
            do="let make(width) use its argument",
        )
    if base.n != base_width:
        raise ConfigError(
            f"a model of width {base.n} made for base_width = {base_width}",
            expected=f"one of width {base_width}",
            do="correct make, or give the width that it makes",
        )


@torch.no_grad()
def _measured(parameter: Tensor, zero_row: int | None) -> Measured:
    weights = parameter.detach().double()
    if zero_row is not None:
        weights = torch.cat([weights[:zero_row], weights[zero_row + 1 :]])
    weights = weights.flatten()
    if weights.device.type == "meta":
        raise ModelError(
            "the model at the base width is on the meta device",
            expected="its initial weights, from which the constants are measured",
            do="let make(width) build it in memory",
        )
    if len(weights) == 0 or bool((weights == weights[0]).all()):
        return Measured(std=0.0, distribution="normal")
    std = math.sqrt(float(weights.square().mean()))
    flat = len(weights) >= _UNIFORM_AT_LEAST and float(weights.abs().max()) < _UNIFORM_BELOW * std
    return Measured(std=std, distribution="uniform" if flat else "normal")
