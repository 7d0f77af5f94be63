"""What each process of a distributed watch test runs: python watch_ranks.py HOW FOLDER RANK WORLD.

HOW is ddp, fsdp or alone; the batch of a step is the same whole in all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import orderone

STEPS = 3


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # 257 rows over two ranks: shards of unequal size.
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 257), nn.ReLU(), nn.Linear(257, 128)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def wrapped(model: Body, how: str, world: int) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def run(how: str, folder: Path, rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = wrapped(Body(), how, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with orderone.watch(model, optimizer, to=folder, every=1) as watch:
        for step in range(STEPS):
            x = torch.randn(8, 128, generator=torch.Generator().manual_seed(step))
            mine = x.chunk(world)[rank]
            optimizer.zero_grad()
            mse_loss(model(mine), mine.roll(1, -1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            watch.log(rank=float(rank))


def main() -> None:
    how, folder, rank, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    if how != "alone":
        store = f"file://{folder}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    run(how, folder, rank, world)
    if how != "alone":
        dist.destroy_process_group()
    # All that is asked for is written. Threads of torch's that still hold a tensor may abort
    # Python's own end, which tells nothing about what is tested.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
