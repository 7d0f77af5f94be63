"""A wrapped model has the table of what is inside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from orderone.core.errors import ModelError
from orderone.models import LanguageConfig, build
from orderone.scaling.placing import find_roles

LANGUAGE = LanguageConfig(n=24, H=2, encoders=2, bias=True, affine=True, n_vocab=35, T=9)


@pytest.fixture
def two_processes() -> Iterator[None]:
    """A group of two in which this process is the first, and nothing is ever sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for block in model.blocks:  # pyright: ignore
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def checkpointed(model: nn.Module) -> nn.Module:
    for index, block in enumerate(model.blocks):  # pyright: ignore
        model.blocks[index] = checkpoint_wrapper(block)  # pyright: ignore
    return model


def compiled_inside(model: nn.Module) -> nn.Module:
    for index, block in enumerate(model.blocks):  # pyright: ignore
        model.blocks[index] = torch.compile(block)  # pyright: ignore
    return model


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        compiled_inside,
        checkpointed,
        DistributedDataParallel,
        sharded,
        lambda model: torch.compile(DistributedDataParallel(checkpointed(model))),
    ],
    ids=["compile", "compile-blocks", "checkpoint", "ddp", "fsdp2", "all"],
)
@pytest.mark.usefixtures("two_processes")
def test_wrapped_models_have_the_same_table(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Names, shapes of whole tensors, roles and reasons, bit for bit."""
    model = build(LANGUAGE, seed=0)
    bare = find_roles(model)
    assert find_roles(wrap(copy.deepcopy(model))) == bare


@pytest.mark.usefixtures("two_processes")
def test_flattened_parameters_are_refused() -> None:
    model = FullyShardedDataParallel(build(LANGUAGE), device_id=torch.device("cpu"))
    with pytest.raises(ModelError, match="which flattens its parameters"):
        find_roles(model)
