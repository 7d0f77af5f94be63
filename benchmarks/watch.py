"""What a watch costs: CPU time of an AdamW step with it over that of a bare step.

A decoder of 10 million parameters, 8 × 128 tokens, gradient clipping, one thread. Each round takes
one step of every kind, in turning order, each with a model of its own: bare, every quantity each
step, every tenth step, and wandb.watch(log="all", log_freq=1) offline where wandb is installed.
ratio = median over rounds of watched / bare: at most 1.03 each step, 1.006 every tenth (medians of
measured and of other steps, weighted 1 : 9). Memory: the process's peak with the watch over that
without it, in copies of the parameters.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from orderone import watch
from orderone.models import LanguageConfig, build

WARM = 2
"""Rounds before those that count."""


class Side:
    """A model with its own optimizer, and what watches them."""

    def __init__(self, n_vocab: int, T: int) -> None:
        config = LanguageConfig(
            n=320,
            H=5,
            encoders=7,
            n_vocab=n_vocab,
            T=T,
            activation="gelu-tanh",
            bias=True,
            affine=True,
        )
        self.model = build(config, seed=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.tick: Callable[[], object] = lambda: None

    def seconds(self, tokens: torch.Tensor) -> float:
        """CPU time of a whole step."""
        start = time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(tokens)
        functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.tick()
        return time.process_time() - start


def watched_by_wandb(side: Side, folder: Path) -> Any:
    """The run, to be finished."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    import wandb  # pyright: ignore[reportMissingImports]

    run: Any = wandb.init(project="orderone", dir=str(folder))
    run.watch(side.model, log="all", log_freq=1)
    side.tick = lambda: run.log({"step": 1})
    return run


def extra_peak(n_vocab: int, T: int) -> float:
    """What watched steps take at most beyond bare ones, in copies of the parameters.

    In a process of its own that gives freed memory back at once, so that its size is what it uses.
    """
    command = [sys.executable, __file__, "--peak", "--vocabulary", str(n_vocab), "--length", str(T)]
    returning = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        command, env={**os.environ, **returning}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def print_peak(n_vocab: int, T: int) -> None:
    side, tokens = Side(n_vocab, T), torch.randint(n_vocab, (8, T))
    with tempfile.TemporaryDirectory() as folder:
        peak_of_steps(side, tokens)  # moments are made, libraries loaded
        bare = peak_of_steps(side, tokens)
        with watch(side.model, side.optimizer, to=Path(folder), every=1):
            watched = peak_of_steps(side, tokens)
    size = sum(p.numel() * p.element_size() for p in side.model.parameters())
    print((watched - bare) / size)


def peak_of_steps(side: Side, tokens: torch.Tensor, count: int = 5) -> int:
    """Bytes that the process holds at most (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high mark is now what is in use
    for _ in range(count):
        side.seconds(tokens)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--peak", action="store_true", help="only the memory, in this process")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if chosen.peak:
        print_peak(chosen.vocabulary, chosen.length)
        return
    tokens = torch.randint(chosen.vocabulary, (8, chosen.length))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        report(measured(Path(temporary), tokens, chosen.rounds, chosen.vocabulary))


def measured(folder: Path, tokens: torch.Tensor, rounds: int, n_vocab: int) -> dict[str, Any]:
    sides = {name: Side(n_vocab, tokens.shape[1]) for name in ("bare", "each", "tenth")}
    parameters = sum(p.numel() for p in sides["bare"].model.parameters())
    copies = extra_peak(n_vocab, tokens.shape[1])
    attached = [
        watch(sides["each"].model, sides["each"].optimizer, to=folder / "each", every=1),
        watch(sides["tenth"].model, sides["tenth"].optimizer, to=folder / "tenth", every=10),
    ]
    finish = [each.close for each in attached]
    if importlib.util.find_spec("wandb"):
        sides["wandb"] = Side(n_vocab, tokens.shape[1])
        finish.append(watched_by_wandb(sides["wandb"], folder).finish)
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(rounds + WARM):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(sides[name].seconds(tokens))
    for each in finish:
        each()
    return {
        "parameters": parameters,
        "copies": copies,
        "times": {name: taken[WARM:] for name, taken in times.items()},
        "measured": [k for k in range(rounds) if (k + WARM + 1) % 10 == 0],
    }


def report(found: dict[str, Any]) -> None:
    times: dict[str, list[float]] = found["times"]
    bare = times["bare"]
    ratios = {
        name: statistics.median(t / b for t, b in zip(taken, bare, strict=True))
        for name, taken in times.items()
        if name in ("each", "wandb")
    }
    tenth = [t / b for t, b in zip(times["tenth"], bare, strict=True)]
    kinds = [
        [ratio for k, ratio in enumerate(tenth) if (k in found["measured"]) == measured]
        for measured in (True, False)
    ]
    medians = [statistics.median(ratios) for ratios in kinds]
    ratios["tenth"] = (medians[0] + 9 * medians[1]) / 10
    print(f"{found['parameters']:,} parameters; a bare step {statistics.median(bare):.3f} s")
    for name, ratio in ratios.items():
        print(f"{name:6s} {ratio:.4f}")
    if "wandb" not in ratios:
        print("wandb is not installed: no comparison")
    print(f"memory {found['copies']:.2f} copies of the parameters")
    rounded = {name: round(ratio, 4) for name, ratio in ratios.items()}
    print(
        json.dumps(
            {
                "bench": "watch",
                "ratios": rounded,
                "memory_copies": round(found["copies"], 3),
                "ratio": rounded["each"],
            }
        )
    )


if __name__ == "__main__":
    main()
