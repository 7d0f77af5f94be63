"""A checkpoint series read once, against the obvious code and a plain read of the files.

8 safetensors checkpoints of 5·10⁷ float32, one thread: ours (consecutive), the obvious code
(load_file, norm, dot, difference) and a plain read, from memory and from a cold page cache; our
anonymous memory; and all pairs of 32 checkpoints against the float64 matrix product they need.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from orderone.trajectory.gram import add_pairs
from orderone.trajectory.one_pass import Pass
from orderone.trajectory.sources import open_series

MEMORY = 512 << 20


def write_series(folder: Path, checkpoints: int, elements: int) -> list[Path]:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(elements, generator=generator)
    files: list[Path] = []
    for i in range(checkpoints):
        files.append(folder / f"model.{i * 100}.safetensors")
        save_file({"layers.0.mlp.weight": theta.view(-1, 1000)}, files[-1])
        theta.add_(torch.randn(elements, generator=generator), alpha=1e-3)
    return files


def ours(folder: Path) -> None:
    checkpoints = open_series(folder).checkpoints
    groups = {"total": list(checkpoints[0].tensors())}
    Pass(checkpoints, groups, pairing="consecutive", memory=MEMORY).run()
    for checkpoint in checkpoints:
        checkpoint.close()


def obvious(files: list[Path]) -> None:
    before: dict[str, torch.Tensor] = {}
    for file in files:
        now = load_file(file)
        for name, theta in now.items():
            torch.linalg.vector_norm(theta)
            if before:
                delta = theta - before[name]
                torch.linalg.vector_norm(delta)
                torch.dot(delta.view(-1), before[name].view(-1))
                torch.dot(theta.view(-1), before[name].view(-1))
        before = now


def plain_read(files: list[Path]) -> None:
    block = bytearray(1 << 20)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(block):
                pass


def drop_cache(files: list[Path]) -> None:
    """Clean pages of these files leave the page cache; needs no privilege."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def seconds(call: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def anonymous() -> int:
    """Anonymous bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def peak_anonymous(call: Callable[[], None]) -> int:
    """The most anonymous memory during a call, beyond what there was before it."""
    before, peak, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return max(0, peak[0] - before)


def memory_bandwidth(elements: int) -> float:
    """GB/s at which one thread reads memory, by summing integers."""
    block = torch.ones(elements // 2, dtype=torch.int64)
    return block.nbytes / min(seconds(lambda: block.sum())[0] for _ in range(3)) / 1e9


def pairs_ratio(checkpoints: int, elements: int) -> float:
    """Seconds of all pairs over those of their float64 matrix product, least of each."""
    rows = [torch.randn(elements) for _ in range(checkpoints)]
    width = 2048
    wide = torch.randn(checkpoints, width, dtype=torch.float64)
    total = torch.zeros(checkpoints, checkpoints, dtype=torch.float64)

    def product() -> None:
        for _ in range(elements // width):
            total.addmm_(wide, wide.T)

    gram = np.zeros((checkpoints, checkpoints))
    best = [float("inf"), float("inf")]
    for _ in range(7):
        best[0] = min(best[0], seconds(lambda: add_pairs(gram, rows))[1])
        best[1] = min(best[1], seconds(product)[1])
    return best[0] / best[1]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--elements", type=int, default=50_000_000)
    arguments.add_argument("--checkpoints", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    try:
        files = write_series(folder, chosen.checkpoints, chosen.elements)
        size = sum(file.stat().st_size for file in files) / 1e9
        print(json.dumps(compare(folder, files, size, chosen.rounds, chosen.elements)))
    finally:
        shutil.rmtree(folder)


def compare(
    folder: Path, files: list[Path], size: float, rounds: int, elements: int
) -> dict[str, object]:
    sides: dict[str, Callable[[], None]] = {
        "ours": lambda: ours(folder),
        "obvious": lambda: obvious(files),
        "read": lambda: plain_read(files),
    }
    for call in sides.values():
        call()
    warm: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    cold: dict[str, list[float]] = {name: [] for name in ("ours", "read")}
    bandwidth: list[float] = []
    for _ in range(rounds):
        bandwidth.append(memory_bandwidth(elements))
        for name, call in sides.items():
            warm[name].append(seconds(call))
    for _ in range(3):
        for name, times in cold.items():
            drop_cache(files)
            times.append(seconds(sides[name])[0])
    rate = {name: size / statistics.median(cpu for _, cpu in t) for name, t in warm.items()}
    cold_rate = {name: size / min(times) for name, times in cold.items()}
    memory = peak_anonymous(sides["ours"])
    product = pairs_ratio(32, 1 << 20)
    for name, value in rate.items():
        print(f"{name:8s} {value:6.2f} GB/s of CPU time, in memory")
    print(f"memory   {statistics.median(bandwidth):6.2f} GB/s read by one thread")
    for name, value in cold_rate.items():
        print(f"{name:8s} {value:6.2f} GB/s, cold cache")
    print(f"ours takes {memory / 2**20:.0f} MiB of anonymous memory")
    print(f"all pairs of 32: {product:.2f} × their float64 matrix product")
    return {
        "bench": "trajectory",
        "gb_per_s": rate,
        "memory_gb_per_s": statistics.median(bandwidth),
        "cold_gb_per_s": cold_rate,
        "cold_over_read": cold_rate["ours"] / cold_rate["read"],
        "anonymous_mib": memory / 2**20,
        "pairs_over_product": product,
        "ratio": rate["ours"] / rate["obvious"],
    }


if __name__ == "__main__":
    main()
