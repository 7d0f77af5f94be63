"""Predicted kernels against plain Monte Carlo over networks of width 1024, at equal error.

Both estimate G and F at the last block of one encoder on the same inputs, in float64, on one
thread. Ours also gives Θ in that time; the networks run forward alone, which flatters them. A
standard error falls as 1/√draws on either side, so the Monte Carlo's time at our error is its
time a draw times the draws that takes. (Its bias, of order 1/n and 1/C, never goes away: that is
not held against it.) ratio = Monte Carlo's time / ours.
"""

import argparse
import json
import math
import statistics
import time

import torch
from torch import Tensor

from orderone import kernels

DTYPE = torch.float64


def network_kernel(x: Tensor, n: int, C: int, generator: torch.Generator) -> Tensor:
    """G of one network after attention and MLP (M = 4): every constant 1."""

    def normal(*shape: int, fan: int) -> Tensor:
        return torch.randn(*shape, dtype=DTYPE, generator=generator) / math.sqrt(fan)

    def norm(z: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(z, (n,), eps=1e-6)

    D, T, n_patch = x.shape
    z = x @ normal(n, n_patch, fan=n_patch).T + normal(T, n, fan=1)
    s = norm(z)
    q, k, v = ((s @ normal(n, n, fan=n).T).view(D, T, -1, C).transpose(1, 2) for _ in range(3))
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    z = z + heads.transpose(1, 2).flatten(2) @ normal(n, n, fan=n).T
    hidden = torch.nn.functional.gelu(norm(z) @ normal(4 * n, n, fan=n).T)
    z = z + hidden @ normal(n, 4 * n, fan=4 * n).T
    rows = z.flatten(0, 1)
    return rows @ rows.T / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=65_536)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 16, dtype=DTYPE, generator=generator)
    ours: list[float] = []
    theirs: list[float] = []
    found: list[Tensor] = []
    for _ in range(chosen.rounds):
        start = time.process_time()
        result = kernels({"stem": "vision", "inputs": x, "samples": chosen.samples})
        ours.append(time.process_time() - start)
        for _ in range(chosen.draws // chosen.rounds):
            start = time.process_time()
            found.append(network_kernel(x, chosen.width, 64, generator))
            theirs.append(time.process_time() - start)
    block = result.blocks[-2]
    draws = torch.stack(found)
    spread = draws.std(0).square().mean().sqrt().item()
    error = block.G_se.square().mean().sqrt().item()
    gap = (draws.mean(0) - block.G).square().mean().sqrt().item()
    needed = (spread / error) ** 2
    one, our_s = statistics.median(theirs), statistics.median(ours)
    print(f"ours         {our_s:.3f} s for G, F and Θ; standard error of G {error:.2e}")
    print(f"width {chosen.width:<6} {one:.3f} s a network; spread of G {spread:.2e}")
    print(f"             {needed:,.0f} networks, {needed * one:,.0f} s, for our error")
    print(f"means differ by {gap:.2e}; their standard error is {spread / len(draws) ** 0.5:.2e}")
    print(
        json.dumps(
            {
                "bench": "kernels",
                "ours_s": round(our_s, 4),
                "ours_se": error,
                "network_s": round(one, 4),
                "network_spread": spread,
                "networks_needed": round(needed),
                "ratio": round(needed * one / our_s, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
