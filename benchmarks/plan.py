"""An AdamW step with the plan's groups against one group; and a plan of R2C2 on the meta device.

One thread, the same parameters and gradients, interleaved. ratio = our median step / that of one
group, at most 1.05, with torch's default (a loop over tensors on the CPU) and freed memory kept.
glibc as it comes gives freed memory back to the kernel, and the page faults of getting it again
are a third of either side's time and depend on the order of the tensors alone: that ratio is
printed too, as is the ratio of the fused step. plan_s: seconds to plan 2.7 billion parameters.
"""

import argparse
import ctypes
import json
import resource
import statistics
import time

import torch
from torch import nn

import orderone
from orderone.models import LanguageConfig, build, preset

AdamW = torch.optim.AdamW


def model_of(n: int, encoders: int) -> nn.Module:
    """With a gradient for every parameter."""
    config = LanguageConfig(
        n=n, H=8, encoders=encoders, n_vocab=8192, T=256, bias=True, affine=True
    )
    model = build(config, seed=0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def sides(model: nn.Module, *, fused: bool) -> tuple[AdamW, AdamW]:
    """Our groups, and one group, on the same parameters; each with state of its own."""
    groups = orderone.plan(model).param_groups(lr=1e-2, weight_decay=1e-4)
    return AdamW(groups, fused=fused), AdamW(model.parameters(), lr=1e-4, fused=fused)


def keep_freed_memory() -> bool:
    """Tells glibc not to give memory back; whether there is a glibc to tell."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    return mallopt is not None and all(mallopt(option, 2**30) for option in (trim, mmap))


def medians(pair: tuple[AdamW, AdamW], rounds: int) -> tuple[float, float]:
    """Seconds of a step of each side; who goes first alternates."""
    taken: list[list[float]] = [[], []]
    for round_ in range(rounds + 2):
        for side in (0, 1) if round_ % 2 else (1, 0):
            taken[side].append(seconds(pair[side]))
    ours, theirs = (statistics.median(times[2:]) for times in taken)
    return ours, theirs


def seconds(optimizer: AdamW) -> float:
    """CPU time of one step."""
    start = time.process_time()
    optimizer.step()
    return time.process_time() - start


def peak() -> int:
    """Most memory that the process has held, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def planning() -> tuple[float, int]:
    """Seconds to plan R2C2 on the meta device, first call, and the memory that it added."""
    model = build(preset("r2c2"), device="meta")
    before, start = peak(), time.perf_counter()
    plan = orderone.plan(model)
    elapsed, added = time.perf_counter() - start, peak() - before
    assert all(parameter.is_meta for parameter in model.parameters())
    print(f"plan of {plan.parameters:,} parameters: {elapsed:.3f} s, {added:,} kB more memory")
    return elapsed, added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--encoders", type=int, default=8)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    plan_s, plan_kb = planning()
    model = model_of(chosen.width, chosen.encoders)
    pair = sides(model, fused=False)
    as_it_comes = medians(pair, chosen.rounds)
    kept = keep_freed_memory()
    our_s, their_s = medians(pair, chosen.rounds)
    fused = medians(sides(model, fused=True), chosen.rounds)
    groups, count = len(pair[0].param_groups), sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters, one thread, {groups} groups against 1")
    for what, (ours, theirs) in {
        "malloc as it comes": as_it_comes,
        "freed memory kept": (our_s, their_s),
        "fused": fused,
    }.items():
        print(f"{what:20s} ours {ours * 1e3:6.2f} ms, one group {theirs * 1e3:6.2f} ms")
    print(
        json.dumps(
            {
                "bench": "plan",
                "groups": groups,
                "ours_s": round(our_s, 6),
                "theirs_s": round(their_s, 6),
                "memory_kept": kept,
                "ratio_malloc_as_it_comes": round(as_it_comes[0] / as_it_comes[1], 4),
                "ratio_fused": round(fused[0] / fused[1], 4),
                "plan_s": round(plan_s, 4),
                "plan_kb": plan_kb,
                "ratio": round(our_s / their_s, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
