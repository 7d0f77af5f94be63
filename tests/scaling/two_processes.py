"""One of two gloo processes: plans a DDP and an FSDP2 model, initialises, steps, saves.

Run by test_survival_distributed.py as ``python two_processes.py RANK FOLDER``. A compiled model is
here too, on all rows in each process: the tests' shape checker is not something to compile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import orderone
from orderone.core.parameter_names import clean_name
from orderone.models import LanguageConfig, build
from orderone.scaling.initialize import put_
from orderone.scaling.plan import Plan

WORLD = 2
STEPS = 3


def model_of(device: str = "cpu") -> nn.Module:
    """Sizes that two processes can't share evenly: 25 words, 7 positions."""
    config = LanguageConfig(
        n=16, H=2, encoders=1, n_vocab=25, T=7, pad=3, bias=True, affine=True, d_ff=27
    )
    return build(config, device=device, seed=99)


def batch() -> Tensor:
    return torch.randint(4, 25, (4, 7), generator=torch.Generator().manual_seed(5))


def train_(model: nn.Module, plan: Plan, rows: Tensor) -> None:
    """A few steps; ε so large that round-off in a tiny gradient is not a step of full size."""
    groups = plan.param_groups(lr=0.1, weight_decay=0.01)
    optimizer = torch.optim.AdamW(groups, eps=1e-3)
    for _ in range(STEPS):
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter in one piece."""
    return {
        clean_name(name): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def run(model: nn.Module, rows: Tensor) -> dict[str, object]:
    """The plan's text, the weights at the start and after training."""
    plan = orderone.plan(model, "maximal-update")
    plan.initialize_(seed=1)
    start = whole(model)
    train_(model, plan, rows)
    return {"plan": plan.to_json(), "start": start, "end": whole(model)}


def ddp() -> nn.Module:
    return DistributedDataParallel(model_of())


def sharded(device: str = "cpu") -> nn.Module:
    model = model_of(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def sharded_from_meta() -> nn.Module:
    model = sharded("meta")
    model.to_empty(device="cpu")
    return model


def placed_any_way() -> dict[str, bool]:
    """``put_`` on shards of either axis and on replicas, against the whole tensor."""
    value = torch.arange(35.0).view(5, 7)
    line, plane = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (1, WORLD))
    ways = {
        "rows": (line, [Shard(0)]),
        "columns": (line, [Shard(1)]),
        "replicas": (line, [Replicate()]),
        "replicas of columns": (plane, [Replicate(), Shard(1)]),
        "both": (plane, [Shard(0), Shard(1)]),
    }
    same = {}
    for name, (mesh, placements) in ways.items():
        parameter = nn.Parameter(distribute_tensor(torch.zeros(5, 7), mesh, placements))
        with torch.no_grad():
            put_(parameter, value)
        same[name] = torch.equal(parameter.full_tensor(), value)
    return same


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORLD
    )
    rows = batch().chunk(WORLD)[rank]
    kinds: dict[str, Callable[[], nn.Module]] = {
        "ddp": ddp,
        "fsdp2": sharded,
        "fsdp2 from meta": sharded_from_meta,
    }
    results: dict[str, object] = {kind: run(make(), rows) for kind, make in kinds.items()}
    results["compiled"] = run(torch.compile(model_of(), backend="eager", fullgraph=True), batch())
    results["placed"] = placed_any_way()
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()
    # All that is asked for is written. Threads of torch's that still hold a tensor may abort
    # Python's own end, which tells nothing about what is tested.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
