"""Process groups: the only file that knows of them. Everything else is handed ``Ranks``."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from orderone.core.errors import ConfigError, ModelError, OrderoneError, RunError
from orderone.core.parameter_names import block_path, clean_name, is_known_container
from orderone.training.config import Parallel

_LAUNCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_KEPT: list[object] = []
"""The last process group, until the next one or the end of the process.

A group whose last reference is a model's is torn down with Python's lock held, and waits for its
own threads: for ever, where one of them waits for the lock to let go of a tensor.
"""
_LET_GO = 0.05
"""Seconds without the lock, in which such threads get it."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that train one model together."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks."""
        if self.world == 1:
            return x
        summed = x.detach().to(self.device, copy=True)
        distributed.all_reduce(summed)
        return summed

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x over all ranks."""
        return x if self.world == 1 else self.total(x) / self.world

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some rank; every rank must ask."""
        if self.world == 1:
            return flag
        return bool(self.total(torch.tensor(float(flag))).item())

    def told(self, number: int) -> int:
        """The leading rank's number, on every rank."""
        if self.world == 1:
            return number
        return int(self.total(torch.tensor(number if self.leads else 0)).item())

    def told_text(self, text: str) -> str:
        """The leading rank's text, on every rank."""
        if self.world == 1:
            return text
        own = list(text.encode()) if self.leads else []
        size = self.told(len(own))
        letters = torch.tensor(own if self.leads else [0] * size, dtype=torch.int64)
        return bytes(self.total(letters).tolist()).decode()

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            distributed.barrier()


ALONE = Ranks()


@contextmanager
def launched(parallel: Parallel, *, timeout: int) -> Generator[Ranks]:
    """This process's ranks: those that torchrun started, or this one alone.

    A rank that dies, or does not answer for ``timeout`` seconds, ends the others with a RunError.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and parallel == "none":
        raise ConfigError(
            f"{world} processes with parallel = 'none'",
            expected="parallel = 'ddp' or 'fsdp' under torchrun",
            do="set parallel, or start one process",
        )
    if world == 1:
        yield Ranks(device=_device(0))
        return
    ranks = _joined(world, timeout)
    try:
        yield ranks
    except OrderoneError:
        raise
    except RuntimeError as error:
        if not _is_silence(error):
            raise
        raise RunError(
            f"process {ranks.rank} of {world} lost another ({str(error).splitlines()[0][:200]})",
            expected=f"every process to answer within {timeout} s",
            do="see the messages of the others, then resume with --resume",
        ) from error
    finally:
        time.sleep(_LET_GO)
        distributed.destroy_process_group()


def _joined(world: int, timeout: int) -> Ranks:
    missing = [name for name in _LAUNCH if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE = {world} without {missing[0]}",
            expected="the environment that torchrun sets",
            do="start with: torchrun --nproc-per-node N -m orderone train CONFIG.toml",
        )
    _KEPT.clear()
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout)
        )
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"{world} processes that cannot meet ({str(error).splitlines()[0][:200]})",
            expected=f"all of them within {timeout} s",
            do="check MASTER_ADDR and MASTER_PORT, and that every process started",
        ) from error
    _KEPT.append(distributed.group.WORLD)
    return Ranks(rank=distributed.get_rank(), world=world, device=device)


def _device(local: int) -> torch.device:
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def _is_silence(error: RuntimeError) -> bool:
    """Whether a collective failed since another rank is gone; gloo raises bare RuntimeErrors."""
    text = str(error).lower()
    signs = ("gloo", "connection", "timed out", "timeout", "recv", "socket", "nccl")
    return isinstance(error, distributed.DistError) or any(sign in text for sign in signs)


def distribute(model: nn.Module, parallel: Parallel, ranks: Ranks) -> nn.Module:
    """The model as every rank trains it: replicated (DDP) or sharded block by block (FSDP2)."""
    if ranks.world == 1:
        return model
    if parallel == "ddp":
        return DistributedDataParallel(
            model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None
        )
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model's stacks, by their parameters' names."""
    paths = [block_path(name) for name, _ in model.named_parameters()]
    known = dict.fromkeys(path for path in paths if path and is_known_container(path[:-1]))
    modules = {clean_name(name): module for name, module in model.named_modules()}
    return [modules[".".join(path)] for path in known if ".".join(path) in modules]


def checkpoint_activations(model: nn.Module) -> None:
    """Blocks are recomputed in the backward pass instead of kept."""
    if hasattr(type(model), "gradient_checkpointing"):
        # By name: this room knows no model, and a Module's stub takes none but tensors and modules.
        setattr(model, "gradient_checkpointing", True)  # noqa: B010
        return
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ModelError(
            f"activation_checkpointing for a {type(model).__name__}",
            expected="a model of ours or of transformers",
            do="set activation_checkpointing = false",
        )
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@contextmanager
def gradients_kept_local(model: nn.Module) -> Generator[None]:
    """Backward passes inside add to this rank's gradients and tell no other."""
    bare = getattr(model, "_orig_mod", model)
    if isinstance(bare, DistributedDataParallel):
        with bare.no_sync():
            yield
    elif isinstance(bare, FSDPModule):
        bare.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            bare.set_requires_gradient_sync(True)
    else:
        yield
