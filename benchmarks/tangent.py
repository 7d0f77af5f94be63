"""Our NTK against torch.func's (vmap of jacrev, contracted by einsum).

A 2-layer transformer, T = 8, batch 4, 10 outputs, averaged over outputs, float32, one thread. CPU
times are the least of interleaved rounds; extra peak memory is the growth of the resident set's
high mark, each side in a process of its own, warmed up. ratio: the least, over
cases, of what was gained over what must be: per-token outputs at width 128 3× faster and with 12×
less memory, pooled outputs at width 512 10× faster.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.models import LanguageConfig, build
from orderone.probes.tangent import tangent

T, BATCH, OUTPUTS = 8, 4, 10
CASES = {"per-token": (128, 3.0, 12.0), "pooled": (512, 10.0, None)}
"""Width, and what must be gained in time and in memory."""

Side = Callable[[nn.Module, Tensor], Tensor]


class Network(nn.Module):
    """Tokens to outputs, averaged over tokens where ``pooled``."""

    def __init__(self, n: int, *, pooled: bool) -> None:
        super().__init__()
        config = LanguageConfig(
            n=n,
            H=max(1, n // 32),
            encoders=2,
            T=T,
            n_vocab=50,
            n_out=OUTPUTS,
            head_tied=False,
            causal=False,
            init_std=n**-0.5,
        )
        self.body = build(config, seed=0)
        self.pooled = pooled

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.body(tokens)
        return out.mean(1) if self.pooled else out


def ours(model: nn.Module, tokens: Tensor) -> Tensor:
    return tangent(model, tokens).total


def theirs(model: nn.Module, tokens: Tensor) -> Tensor:
    """The recipe of PyTorch's own tutorial, "trace" contraction, with an axis of tokens."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def single(given: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, given, (x[None],))[0].reshape(-1, OUTPUTS)

    # The fused kernel's backward pass would be looped over: slower still.
    with sdpa_kernel(SDPBackend.MATH):
        J = vmap(jacrev(single), (None, 0))(parameters, tokens)
    flat = [j.flatten(3).flatten(0, 1) for j in J.values()]
    return torch.stack([torch.einsum("Naf,Maf->NM", j, j) for j in flat]).sum(0) / OUTPUTS


SIDES: dict[str, Side] = {"ours": ours, "theirs": theirs}


def case(name: str) -> tuple[nn.Module, Tensor]:
    n = CASES[name][0]
    tokens = torch.randint(50, (BATCH, T), generator=torch.Generator().manual_seed(0))
    return Network(n, pooled=name == "pooled"), tokens


def extra_peak(name: str, side: str) -> float:
    """MiB, measured in a new process."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak-of", name, side],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def print_peak(name: str, side: str) -> None:
    small = Network(32, pooled=False), torch.zeros(2, 2, dtype=torch.long)
    SIDES[side](*small)  # loads libraries, starts threads
    arguments = case(name)
    arguments[0](arguments[1])
    Path("/proc/self/clear_refs").write_text("5")  # the high mark is now what is in use
    before = high_mark()
    SIDES[side](*arguments)
    print(high_mark() - before)


def high_mark() -> float:
    """MiB. Not ``ru_maxrss``, which a child process inherits from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def errors_of(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Each side's largest error in float32, of the largest entry; in float64 the two agree."""
    double = copy.deepcopy(model).double()
    exact, same = ours(double, tokens[:2]), theirs(double, tokens[:2])
    assert (exact - same).abs().max() < 1e-9 * same.abs().max()
    exact = ours(double, tokens)
    return {
        side: ((function(model, tokens) - exact).abs().max() / exact.abs().max()).item()
        for side, function in SIDES.items()
    }


def measured(name: str, rounds: int) -> dict[str, float]:
    arguments = case(name)
    errors = errors_of(*arguments)
    least = dict.fromkeys(SIDES, float("inf"))
    for _ in range(rounds):
        for side, function in SIDES.items():
            start = time.process_time()
            function(*arguments)
            least[side] = min(least[side], time.process_time() - start)
    peaks = {side: extra_peak(name, side) for side in SIDES}
    for side in SIDES:
        print(
            f"{name:10s} {side:7s} {least[side] * 1e3:7.1f} ms {peaks[side]:8.1f} MiB extra,"
            f" error {errors[side]:.1e}"
        )
    return {
        "ours_ms": round(least["ours"] * 1e3, 1),
        "theirs_ms": round(least["theirs"] * 1e3, 1),
        "speedup": round(least["theirs"] / least["ours"], 2),
        "ours_mib": round(peaks["ours"], 1),
        "theirs_mib": round(peaks["theirs"], 1),
        "memory": round(peaks["theirs"] / max(peaks["ours"], 1.0), 2),
        "ours_error": errors["ours"],
        "theirs_error": errors["theirs"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-of", nargs=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.peak_of:
        print_peak(*chosen.peak_of)
        return
    found = {name: measured(name, chosen.rounds) for name in CASES}
    gains = [
        gain / least
        for name, (_, time_gain, memory_gain) in CASES.items()
        for gain, least in (
            (found[name]["speedup"], time_gain),
            (found[name]["memory"], memory_gain),
        )
        if least is not None
    ]
    print(json.dumps({"bench": "tangent", **found, "ratio": round(min(gains), 3)}))


if __name__ == "__main__":
    main()
