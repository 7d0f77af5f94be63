"""Our norm and dot against torch's on 5·10⁷ elements: time, and error against float64."""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from orderone.core.reductions import dot, norm

CHUNK = 1_000_000


def exact_dot(a: Tensor, b: Tensor) -> float:
    parts = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
    return sum(float(x.double() @ y.double()) for x, y in parts)


def interleaved(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], rounds: int
) -> tuple[float, float]:
    """Least seconds of each side; least, since a neighbour on the machine only ever adds."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for side, call in enumerate((ours, theirs)):
            start = time.perf_counter()
            call()
            best[side] = min(best[side], time.perf_counter() - start)
    return best[0], best[1]


def compare(
    what: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], exact: float, scale: float
) -> dict[str, float]:
    seconds = interleaved(ours, theirs, rounds=15)
    errors = [abs(float(call()) - exact) / scale for call in (ours, theirs)]
    print(
        f"{what:16s} ours {seconds[0] * 1e3:6.2f} ms, error {errors[0]:.1e};"
        f" torch {seconds[1] * 1e3:6.2f} ms, error {errors[1]:.1e}"
    )
    return {"ratio": seconds[0] / seconds[1], "error": errors[0], "torch_error": errors[1]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--elements", type=int, default=50_000_000)
    elements = arguments.parse_args().elements
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(elements, generator=generator)
    b = torch.randn(elements, generator=generator)
    results: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, y = a.to(dtype), b.to(dtype)
        xx, yy, xy = exact_dot(x, x), exact_dot(y, y), exact_dot(x, y)
        kind = str(dtype).removeprefix("torch.")
        results[f"norm {kind}"] = compare(
            f"norm {kind}",
            lambda x=x: norm(x),
            lambda x=x: torch.linalg.vector_norm(x),
            xx**0.5,
            xx**0.5,
        )
        results[f"dot {kind}"] = compare(
            f"dot {kind}",
            lambda x=x, y=y: dot(x, y),
            lambda x=x, y=y: torch.dot(x, y),
            xy,
            (xx * yy) ** 0.5,
        )
    ratio = results["norm float32"]["ratio"]
    print(json.dumps({"bench": "reductions", **results, "ratio": ratio}))


if __name__ == "__main__":
    main()
