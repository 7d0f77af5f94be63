"""One of two gloo processes: an FSDP2 model scaled and restored, also when its forward raises.

Run by test_scaled.py as ``python two_processes_scaled.py RANK FOLDER``.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from orderone.models import LanguageConfig, build
from orderone.probes.scaled import ScaleOverflowError, scaled

WORLD = 2
WORDS = torch.arange(5)[None]


def made(*, shard: bool) -> nn.Module:
    config = LanguageConfig(n=16, H=2, encoders=2, n_vocab=11, T=6, bias=True, affine=True)
    model = build(config, seed=3).eval()
    if shard:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def whole(model: nn.Module) -> list[Tensor]:
    model.state_dict()  # what was gathered is let go: sharded parameters alone are compared
    found = []
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        found.append(parameter.full_tensor().detach().clone())
    return found


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def raising(model: nn.Module) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    handle = model.blocks[2].register_forward_hook(fail)
    with suppress(RuntimeError), scaled(model):
        model(WORDS)
        raise AssertionError("the forward pass did not raise")
    handle.remove()


@torch.no_grad()
def results() -> dict[str, bool]:
    model, alone = made(shard=True), made(shard=False)
    start, plain = whole(model), model(WORDS)
    found = {"forward": torch.allclose(plain, alone(WORDS), atol=1e-6)}
    # The root's parameters are still gathered here: they must be scaled all the same.
    with scaled(model):
        large = model(WORDS)
    with scaled(alone):
        expected = alone(WORDS)
    found["scaled forward"] = torch.allclose(large, expected, rtol=1e-4)
    found["restored"] = same(whole(model), start)
    found["forward after"] = torch.equal(model(WORDS), plain)
    with scaled(model, 1000.0):
        model(WORDS)
    found["restored from a copy"] = same(whole(model), start)
    with torch.no_grad():
        first = next(iter(model.parameters())).to_local()
        kept = first.clone()
        if distributed.get_rank() == 1:
            first.view(-1)[0] = 1e37
    try:
        with scaled(model):
            found["one rank's overflow stops all"] = False
    except ScaleOverflowError:
        found["one rank's overflow stops all"] = True
    with torch.no_grad():
        first.copy_(kept)
    raising(model)
    found["restored after raising"] = same(whole(model), start)
    return found


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORLD
    )
    torch.save(results(), folder / f"{rank}.pt")
    distributed.destroy_process_group()
    # All that is asked for is written. Threads of torch's that still hold a tensor may abort
    # Python's own end, which tells nothing about what is tested.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
