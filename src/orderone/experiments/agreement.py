"""Prediction beside measurement: kernels at infinite width, and of networks of several widths.

A single network's kernel strays from the prediction by O(1/√n), the mean of many by its standard
error and a bias: [DYZ23] expands in depth over width, and where scores are taken Gaussian in 1/C.
The two agree where no entry, and not the overlap ⟨measured, predicted⟩ / ‖predicted‖², is further
away than 4 joint standard errors and an allowance for that bias, (blocks)/n + 1/C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.experiments.finite_networks import (
    FiniteNetwork,
    Key,
    Measured,
    head_count,
    measurable,
    network_seed,
)
from orderone.experiments.slope import Estimate, loglog_slope, student_quantile
from orderone.experiments.workers import workers
from orderone.theory.kernels import Kernels, kernels
from orderone.theory.propagation import Estimate as Bars
from orderone.theory.propagation import batch_mean
from orderone.theory.spec import KernelSpec

CHANNELS = 16
"""Of a head, at most, where neither the spec nor its reader says."""
LEAST_NETWORKS = 4
ERRORS = 4.0
"""Joint standard errors that chance is granted."""
EXACT = 1e-9
"""Relative errors below are rounding, without a law in n."""
GROUP = "Theta of "
"""Before the name of a group: what it adds to Θ at the head."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One kernel of one block at one width, beside its prediction."""

    quantity: str
    """G, F, Theta, or "Theta of" a group."""
    block: str
    place: int
    width: int
    predicted: Bars
    measured: Bars
    """Mean of the networks."""
    strays: tuple[float, ...]
    """‖K̂ − K‖ / ‖K‖ of every single network."""
    overlaps: tuple[float, ...]
    """⟨K̂, K⟩ / ‖K‖² of every single network."""
    allowance: float
    """Relative bias that is granted."""

    @property
    def exact(self) -> bool:
        """At this width every network's kernel is the predicted one: nothing to fall with n."""
        return max(self.strays) < EXACT

    @property
    def overlap(self) -> float:
        """Of the mean."""
        return math.fsum(self.overlaps) / len(self.overlaps)

    @property
    def overlap_se(self) -> float:
        """Of measurement and prediction together."""
        found = torch.tensor(self.overlaps, dtype=torch.float64)
        ours = float(self.predicted.se.norm() / self.predicted.value.norm())
        return math.hypot(float(found.std()) / math.sqrt(len(found)), ours)

    @property
    def excess(self) -> float:
        """The largest gap, in units of what is granted: above 1 the two disagree."""
        joint = (self.measured.se.square() + self.predicted.se.square()).sqrt()
        bias = self.allowance * self.predicted.value.abs().max()
        rounding = EXACT * self.predicted.value.abs().max()
        gap = (self.measured.value - self.predicted.value).abs()
        entries = float((gap / (self._reach * joint + bias + rounding)).max())
        granted = self._reach * self.overlap_se + self.allowance
        # torch's max keeps a NaN, which is a disagreement.
        return float(torch.tensor([entries, abs(self.overlap - 1) / granted]).max())

    @property
    def agrees(self) -> bool:
        return self.excess <= 1

    @property
    def _reach(self) -> float:
        """What 4 standard errors are where the error itself is estimated from few networks."""
        chance = 0.5 * math.erfc(ERRORS / math.sqrt(2))
        return student_quantile(1 - chance, len(self.overlaps) - 1)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A prediction, and what networks of several widths have to say to it."""

    predicted: Kernels
    widths: tuple[int, ...]
    networks: int
    """Of each width."""
    comparisons: tuple[Comparison, ...]

    @property
    def disagreeing(self) -> tuple[Comparison, ...]:
        """Furthest away first."""
        found = [each for each in self.comparisons if not each.agrees]
        return tuple(sorted(found, key=lambda each: -each.excess))

    @property
    def verdict(self) -> str:
        return "does not hold" if self.disagreeing else "holds"

    @property
    def widest(self) -> tuple[Comparison, ...]:
        """At the largest width."""
        return tuple(each for each in self.comparisons if each.width == max(self.widths))

    def of(self, quantity: str, block: str) -> tuple[Comparison, ...]:
        """At every width."""
        wanted = (quantity, block)
        return tuple(each for each in self.comparisons if (each.quantity, each.block) == wanted)

    def slope(self, quantity: str, block: str) -> Estimate | None:
        """Exponent of n of one network's error: −½; None of what is exact at any width."""
        return stray_slope(self.of(quantity, block))

    @property
    def slopes(self) -> dict[tuple[str, str], Estimate]:
        """Of every quantity and block that has one."""
        places = dict.fromkeys((each.quantity, each.block) for each in self.comparisons)
        found = {place: self.slope(*place) for place in places}
        return {place: slope for place, slope in found.items() if slope is not None}


def agreement(
    spec: KernelSpec,
    widths: Sequence[int],
    *,
    networks: int = 16,
    heads: int | None = None,
    tangents: bool = True,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Predict, build ``networks`` of each width, measure, compare.

    Heads have the spec's channels, or else ``CHANNELS`` in networks and prediction alike, so that
    there are more of them as n grows. With ``heads`` there are so many at any width, and C → ∞ in
    the prediction. With ``tangents`` false only G and F are compared.
    """
    spec, chosen = _checked(measurable(spec), widths, networks, heads)
    predicted = kernels(spec)
    found = measurements(
        spec,
        chosen,
        networks=networks,
        heads=heads,
        tangents=tangents,
        processes=processes,
        progress=progress,
    )
    return Agreement(
        predicted=predicted,
        widths=tuple(chosen),
        networks=networks,
        comparisons=tuple(
            each for n in chosen for each in compared(predicted, found[n], width=n, heads=heads)
        ),
    )


def measurements(
    spec: KernelSpec,
    widths: Sequence[int],
    *,
    networks: int,
    heads: int | None = None,
    tangents: bool = True,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, list[Measured]]:
    """Kernels of every network, by width."""
    tasks = [
        MeasureTask(
            spec=spec, width=n, heads=heads, seed=network_seed(spec.seed, n, i), full=tangents
        )
        for n in widths
        for i in range(networks)
    ]
    found: dict[int, Measured] = {}
    with workers(measured, processes=processes) as spread:
        for done, (index, result) in enumerate(spread(tasks), start=1):
            found[index] = result
            if progress is not None:
                progress(done, len(tasks))
    return {
        n: [found[place * networks + i] for i in range(networks)] for place, n in enumerate(widths)
    }


@dataclass(frozen=True, kw_only=True)
class MeasureTask:
    """One network to build and to measure."""

    spec: KernelSpec
    width: int
    heads: int | None
    seed: int
    full: bool = True
    """Θ too."""


def measured(task: MeasureTask) -> Measured:
    """The kernels of the task's network."""
    network = FiniteNetwork.of(task.spec, task.width, task.heads)
    return network.measure(task.seed) if task.full else network.forward(task.seed)


def compared(
    predicted: Kernels, networks: Sequence[Measured], *, width: int, heads: int | None
) -> list[Comparison]:
    """Every kernel that was measured, beside the prediction; what is 0 in both is left out."""
    C = math.inf if heads is None else width // heads
    found: list[Comparison] = []
    for key in sorted(networks[0], key=_order):
        quantity, place = key
        ours = prediction(predicted, key)
        runs = [network[key] for network in networks]
        size = ours.value.norm()
        if not size and not any(run.any() for run in runs):
            continue
        found.append(
            Comparison(
                quantity=quantity,
                block=predicted.blocks[place].name,
                place=place,
                width=width,
                predicted=ours,
                measured=batch_mean(runs),
                strays=tuple(float((run - ours.value).norm() / size) for run in runs),
                overlaps=tuple(float((run * ours.value).sum() / size.square()) for run in runs),
                allowance=len(predicted.blocks) / width + 1 / C,
            )
        )
    return found


def _order(key: Key) -> tuple[int, int]:
    """G, F, Θ and its groups, each from the stem to the head."""
    quantity, place = key
    first = ("G", "F", "Theta")
    return (first.index(quantity) if quantity in first else len(first), place)


def prediction(predicted: Kernels, key: Key) -> Bars:
    """What the theory says of a measured kernel."""
    quantity, place = key
    block = predicted.blocks[place]
    if quantity.startswith(GROUP):
        return block.by_group[quantity.removeprefix(GROUP)]
    values: Mapping[str, tuple[Float64[Tensor, "a a"], Float64[Tensor, "a a"]]] = {
        "G": (block.G, block.G_se),
        "F": (block.F, block.F_se),
        "Theta": (block.Theta, block.Theta_se),
    }
    value, se = values[quantity]
    return Bars(value=value, se=se)


def stray_slope(comparisons: Sequence[Comparison]) -> Estimate | None:
    """Exponent of n of ‖K̂ − K‖ / ‖K‖, every network a point."""
    points = [(each.width, stray) for each in comparisons for stray in each.strays]
    if all(each.exact for each in comparisons) or len({width for width, _ in points}) < 2:
        return None
    return loglog_slope([width for width, _ in points], [stray for _, stray in points])


def bias_slope(comparisons: Sequence[Comparison]) -> Estimate | None:
    """Exponent of n of the mean's bias |overlap − 1|; None where some width does not resolve it.

    Resolved is a bias of at least four standard errors. The interval is what those errors leave of
    a line through the logarithms.
    """
    biases = [each.overlap - 1 for each in comparisons]
    errors = [each.overlap_se for each in comparisons]
    resolved = all(abs(b) > ERRORS * e for b, e in zip(biases, errors, strict=True))
    if len(biases) < 2 or not resolved or len({b > 0 for b in biases}) > 1:
        return None
    x = torch.tensor([float(each.width) for each in comparisons], dtype=torch.float64).log()
    y = torch.tensor(biases, dtype=torch.float64).abs().log()
    weight = (x - x.mean()) / (x - x.mean()).square().sum()
    slope = float(weight @ y)
    relative = torch.tensor(errors, dtype=torch.float64) / torch.tensor(biases).abs()
    reach = 1.96 * float((weight * relative).norm())
    return Estimate(value=slope, low=slope - reach, high=slope + reach)


def _checked(
    spec: KernelSpec, widths: Sequence[int], networks: int, heads: int | None
) -> tuple[KernelSpec, list[int]]:
    """The spec with its heads settled, and the widths in order."""
    chosen = sorted(set(widths))
    if not chosen or chosen[0] < 1 or networks < LEAST_NETWORKS:
        raise ConfigError(
            f"widths {', '.join(map(str, widths)) or 'none'} and {networks} networks of each",
            expected=f"positive widths, and at least {LEAST_NETWORKS} networks to tell an error",
            do="for example --widths 64,128,256 --networks 16",
        )
    if heads is None and spec.head_dim is None:
        common = math.gcd(*chosen)
        channels = max(C for C in range(1, CHANNELS + 1) if common % C == 0)
        spec = spec.replace(head_dim=channels)
    for n in chosen:
        head_count(spec, n, heads)
    return spec, chosen
