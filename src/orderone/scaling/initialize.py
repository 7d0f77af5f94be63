"""Initial weights at their target deviations, fixed by (seed, name) alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from orderone.core.errors import ModelError
from orderone.core.generators import generator_for
from orderone.scaling.constants import Distribution
from orderone.scaling.row import Row

_CUT = 2.0
_PHI = math.exp(-(_CUT**2) / 2) / math.sqrt(2 * math.pi)
TRUNCATED_STD = math.sqrt(1 - 2 * _CUT * _PHI / math.erf(_CUT / math.sqrt(2)))
"""Deviation of a unit normal cut at ±2: 1 − 2cφ(c)/(2Φ(c) − 1) is its variance."""


@torch.no_grad()
def initialize_(parameters: Mapping[str, nn.Parameter], rows: Iterable[Row], *, seed: int) -> None:
    """Every parameter as its row says; again gives the same bits, in any order, on any device."""
    rows = [row for row in rows if row.start != "keep"]
    for row in rows:
        if parameters[row.name].device.type == "meta":
            raise ModelError(
                f"{row.name} is on the meta device",
                expected="memory to initialise",
                do="call model.to_empty(device=...) first",
            )
    for row in rows:
        put_(parameters[row.name], start_of(row, seed=seed))


def start_of(row: Row, *, seed: int) -> Tensor:
    """The row's initial tensor, whole, in float32 on the CPU."""
    if row.start == "one":
        return torch.ones(row.shape)
    if row.start == "zero":
        return torch.zeros(row.shape)
    assert row.init_std is not None
    generator = generator_for(seed, row.name)
    weights = drawn(row.shape, row.init_std, row.distribution, generator)
    if row.zero_row is not None:
        weights[row.zero_row].zero_()
    return weights


def drawn(
    shape: tuple[int, ...], std: float, distribution: Distribution, generator: torch.Generator
) -> Tensor:
    """Independent numbers of mean zero and exactly that deviation in distribution."""
    weights = torch.empty(shape)
    if distribution == "uniform":
        edge = math.sqrt(3) * std
        return weights.uniform_(-edge, edge, generator=generator)
    if distribution == "truncated":
        nn.init.trunc_normal_(weights, a=-_CUT, b=_CUT, generator=generator)
        return weights.mul_(std / TRUNCATED_STD)
    return weights.normal_(0.0, std, generator=generator)


def put_(parameter: nn.Parameter, value: Tensor) -> None:
    """Copies the value, or this process's shard of it: nothing is sent between processes."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(value)
        return
    # Each process has drawn the whole tensor; None means that none waits for another's.
    shard = distribute_tensor(
        value, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    parameter.to_local().copy_(shard.to_local())
