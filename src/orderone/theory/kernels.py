"""``orderone.kernels``: G, F and Θ of every block at infinite width, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.theory.adamw import adamw_rates, copies, gradient_sizes
from orderone.theory.network import BlockSignal, Network, refuse_overflow
from orderone.theory.propagation import Estimate, batch_mean, relative_error
from orderone.theory.signal import Rates
from orderone.theory.spec import MOST_SAMPLES, KernelSpec

Progress = Callable[[int, int], None]
"""Told after each recursion: how many are done, of how many."""

PILOT_SAMPLES = 16_384
LEAST_DRAWS = 256
"""Of a recursion: its control variates' coefficients are fitted to so many."""


@dataclass(frozen=True, kw_only=True)
class BlockKernels:
    """One block's kernels over the D·T pairs (sample-major), at a pooled head over samples."""

    name: str
    G: Float[Tensor, "a a"] = field(repr=False)
    F: Float[Tensor, "a a"] = field(repr=False)
    """Kernel of LN(z)."""
    Theta: Float[Tensor, "a a"] = field(repr=False)
    G_se: Float[Tensor, "a a"] = field(repr=False)
    F_se: Float[Tensor, "a a"] = field(repr=False)
    Theta_se: Float[Tensor, "a a"] = field(repr=False)
    by_group: Mapping[str, Estimate] = field(repr=False)
    """What every parameter group adds to Θ; empty where it was not asked for."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """All blocks, the last one the head."""

    spec: KernelSpec = field(repr=False)
    blocks: tuple[BlockKernels, ...]
    samples: int
    """Draws of each attention block, all recursions together."""
    gradient_sizes: Mapping[str, float]
    """With AdamW: r.m.s. |g| of every group, in units of the paper's estimate."""

    @property
    def head(self) -> BlockKernels:
        return self.blocks[-1]

    def __str__(self) -> str:
        """A line for each block: means of the diagonals, and the largest standard errors."""
        rows = [
            f"  {block.name:<22} {float(block.G.diagonal().mean()):>10.4f}"
            f" {float(block.Theta.diagonal().mean()):>10.4f}"
            f" {float(block.G_se.max()):>10.1e} {float(block.Theta_se.max()):>10.1e}"
            for block in self.blocks
        ]
        head = f"  {'mean of the diagonal':<22} {'G':>10} {'Θ':>10} {'G_se':>10} {'Theta_se':>10}"
        return "\n".join([f"Kernels from {self.samples:,} draws", head, *rows])

    def to_json(self) -> dict[str, Any]:
        """``{"blocks": [{"name", "G", "F", "Theta", "G_se", "Theta_se"}, ...]}``."""
        matrices = ("G", "F", "Theta", "G_se", "Theta_se")
        return {
            "blocks": [
                {"name": block.name, **{name: getattr(block, name).tolist() for name in matrices}}
                for block in self.blocks
            ]
        }


def kernels(
    arch: KernelSpec | Mapping[str, Any],
    inputs: Any = None,
    *,
    progress: Progress | None = None,
    **changes: Any,
) -> Kernels:
    """G, F and Θ by block, [DYZ23] §§ I.1, I.3: from a ``KernelSpec`` or what one is made of.

    ``inputs`` and other keywords replace the spec's own.
    """
    changes = changes if inputs is None else {"inputs": inputs, **changes}
    if isinstance(arch, KernelSpec):
        spec = arch.replace(**changes) if changes else arch
    else:
        spec = KernelSpec(**{**checked_settings(arch), **changes})
    network = Network.read(spec)
    if spec.target_error is None:
        return _estimate(network, spec.samples, progress)
    return _to_target(network, spec.target_error, progress)


def checked_settings(arch: object) -> Mapping[str, Any]:
    """``arch`` as settings by name."""
    if isinstance(arch, Mapping):
        return cast("Mapping[str, Any]", arch)
    raise ConfigError(
        f"an architecture that is a {type(arch).__name__}",
        expected="a KernelSpec, or its settings by name",
        do="write {'stem': 'language', ...}; orderone.theory.spec.read_spec reads a file",
    )


def _to_target(network: Network, target: float, progress: Progress | None) -> Kernels:
    """Rerun with as many draws as the last run's error asks for, which falls as 1/√N."""
    samples = PILOT_SAMPLES
    while True:
        found = _estimate(network, samples, progress)
        head = found.head
        error = max(
            relative_error(Estimate(value=head.G, se=head.G_se)),
            relative_error(Estimate(value=head.Theta, se=head.Theta_se)),
        )
        if error <= target:
            return found
        samples = math.ceil(samples * max(2.0, 1.2 * (error / target) ** 2))
        if samples > MOST_SAMPLES:
            raise ConfigError(
                f"target_error = {target:g}, which takes {samples:.2g} samples",
                expected=f"at most {MOST_SAMPLES}",
                do="raise target_error",
            )


def _estimate(network: Network, samples: int, progress: Progress | None) -> Kernels:
    R = network.spec.recursions
    # Sobol points are balanced at powers of two.
    draws = 1 << max(LEAST_DRAWS.bit_length() - 1, math.ceil(math.log2(samples / R)))
    runs: list[list[BlockSignal]] = []
    for index in range(R):
        runs.append(network.recursion(index, draws))
        if progress is not None:
            progress(index + 1, R)
    rates, sizes = _rates(network, runs)
    blocks = tuple(_block(rates, list(column)) for column in zip(*runs, strict=True))
    return Kernels(spec=network.spec, blocks=blocks, samples=R * draws, gradient_sizes=sizes)


def _rates(network: Network, runs: list[list[BlockSignal]]) -> tuple[Rates, dict[str, float]]:
    """SGD's Λ_G as given; AdamW's over the gradients' sizes at the head."""
    if network.spec.optimizer == "sgd":
        return network.rates, {}
    heads = [run[-1].Theta for run in runs]
    mean = {group: batch_mean([Theta[group] for Theta in heads]).value for group in heads[0]}
    sizes = gradient_sizes(mean, copies(network))
    return Rates(Lambda=adamw_rates(network.rates.Lambda, sizes), split=True), sizes


def _block(rates: Rates, runs: list[BlockSignal]) -> BlockKernels:
    G, F = batch_mean([run.G for run in runs]), batch_mean([run.F for run in runs])
    Theta = batch_mean([rates.total(run.Theta) for run in runs])
    refuse_overflow(runs[0].name, G.se, Theta.value, Theta.se)
    groups = runs[0].Theta if rates.split else ()
    return BlockKernels(
        name=runs[0].name,
        G=G.value,
        F=F.value,
        Theta=Theta.value,
        G_se=G.se,
        F_se=F.se,
        Theta_se=Theta.se,
        by_group={
            group: batch_mean([rates.Lambda[group] * run.Theta[group] for run in runs])
            for group in groups
        },
    )
