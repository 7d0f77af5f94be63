"""One component of the gradient falls as the root of its tensor's fan-out, in every group.

Source   [DYZ23] §I.3: |g| = 1/√n for patch, WE, PE, Q, K, V, U and X, 1/√(Mn) for W, 1/√n_out for
         the head: what AdamW's factors (1.108)–(1.116) have over SGD's
Expect   exponents of n −½ within 0.1; sizes as predicted, within 4 joint standard errors and
         (blocks)/n
Cost     smoke 10 s, laptop 1 min, paper 30 min on one core each
Differs  n_out = n, so that the head's size has a law too; M = 4; |g| is that of an output's
         gradient, the loss only weighs it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from orderone.experiments.agreement import ERRORS
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.finite_networks import FiniteNetwork, measurable, network_seed
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.slope import Estimate, loglog_slope
from orderone.experiments.specimens import PATHS, language, vision
from orderone.experiments.workers import workers
from orderone.report.charts import Picture, facets
from orderone.report.page import Section
from orderone.report.theme import BLUE, GREEN, ORANGE
from orderone.theory.kernels import kernels
from orderone.theory.spec import KernelSpec

PUBLISHED = "|g| ∝ 1/√n (patch, WE, PE, Q, K, V, U, X), 1/√(Mn) (W), 1/√n_out (head, head bias)"

LAW = -0.5
WITHIN = 0.1
M = 4
FAN_OUT = {"W": "1/√(Mn)", "head": "1/√n_out", "head_bias": "1/√n_out"}
USUAL = "1/√n"


@dataclass(frozen=True, kw_only=True)
class Group:
    """|g| of a group of one kind of network: every network, by width, in units of the law."""

    network: str
    group: str
    sizes: dict[int, list[float]]
    """|g|."""
    predicted: float
    """γ, |g| in units of 1/√fan_out."""
    blocks: int

    @property
    def slope(self) -> Estimate:
        """Exponent of n."""
        points = [(n, size) for n, sizes in self.sizes.items() for size in sizes]
        found = loglog_slope([n for n, _ in points], [size for _, size in points])
        return found or Estimate(value=math.nan, low=math.nan, high=math.nan)

    def ratio(self, n: int) -> tuple[float, float]:
        """Measured over predicted, with its standard error."""
        fan_out = M * n if self.group == "W" else n
        unit = self.predicted / math.sqrt(fan_out)
        values = [size / unit for size in self.sizes[n]]
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return mean, math.sqrt(variance / len(values))

    @property
    def lawful(self) -> bool:
        return abs(self.slope.value - LAW) <= WITHIN

    @property
    def as_predicted(self) -> bool:
        """At the largest width."""
        n = max(self.sizes)
        value, se = self.ratio(n)
        return abs(value - 1) <= ERRORS * se + self.blocks / n


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network to build."""

    spec: KernelSpec
    width: int
    index: int


def specs(encoders: int, samples: int) -> dict[str, KernelSpec]:
    """Vision, and causal language with a head of its own: each group in one of them."""
    settings = {"encoders": encoders, "samples": samples, "head_dim": 16, "optimizer": "adamw"}
    C = {**PATHS, "Q": 1.0, "K": 1.0, "position": 0.3}
    return {
        "vision": vision(C, **settings),
        "language": language(C, head_tied=False, **settings),
    }


def reproduce(stage: Stage) -> Outcome:
    """|g| of every group over widths, of two kinds of networks."""
    widths = stage.pick(smoke=[64, 128, 256], laptop=[64, 128, 256, 512], paper=[96, 192, 384, 768])
    networks = stage.pick(smoke=8, laptop=16, paper=32)
    encoders = stage.pick(smoke=1, laptop=2, paper=12)
    samples = stage.pick(smoke=2**12, laptop=2**15, paper=2**17)
    groups: list[Group] = []
    for name, spec in specs(encoders, samples).items():
        tasks = [Task(spec=spec, width=n, index=i) for n in widths for i in range(networks)]
        found: dict[int, dict[str, float]] = {}
        with workers(measured, processes=stage.processes) as spread:
            for done, (index, sizes) in enumerate(spread(tasks), start=1):
                found[index] = sizes
                stage.progress(done, len(tasks))
        at = kernels(measurable(spec))
        groups += [
            Group(
                network=name,
                group=group,
                sizes={
                    n: [found[i][group] for i, task in enumerate(tasks) if task.width == n]
                    for n in widths
                },
                predicted=at.gradient_sizes[group],
                blocks=len(at.blocks),
            )
            for group in found[0]
        ]
    for each in groups:
        for n, sizes in each.sizes.items():
            for size in sizes:
                stage.record("|g|", size, step=n, network=each.network, group=each.group)
    return outcome(groups)


def measured(task: Task) -> dict[str, float]:
    """|g| by group."""
    spec = measurable(task.spec)
    network = FiniteNetwork.of(spec, task.width)
    return network.gradient_sizes(network_seed(spec.seed, task.width, task.index))


def outcome(groups: Sequence[Group]) -> Outcome:
    """Every exponent and every size."""
    wrong = [each for each in groups if not each.lawful]
    off = [each for each in groups if not each.as_predicted]
    slopes = [each.slope.value for each in groups]
    widths = sorted(groups[0].sizes)
    ratios = [each.ratio(max(widths))[0] for each in groups]
    why = [f"{each.group} of {each.network}: n^{each.slope.value:.2f}." for each in wrong] + [
        f"{each.group} of {each.network} is {each.ratio(max(widths))[0]:.2f} times the prediction."
        for each in off
    ]
    return Outcome(
        measured=(
            f"exponents of n from {min(slopes):.3f} to {max(slopes):.3f} in all {len(groups)} "
            f"groups of two kinds of networks, n = {widths[0]} … {widths[-1]}; at n = "
            f"{widths[-1]} sizes are {min(ratios):.3f} to {max(ratios):.3f} times the predicted"
        ),
        held=not wrong and not off,
        why=" ".join(why),
        sections=[
            Section(
                heading="Sizes by width",
                chart=chart(groups),
                alternative="Size of a gradient component of every group against width, log-log",
            ),
            _table(groups),
        ],
    )


def chart(groups: Sequence[Group]) -> Picture:
    """A panel each kind of network, a line each group."""
    rows = [
        {
            "network": each.network,
            "group": each.group,
            "law": FAN_OUT.get(each.group, USUAL),
            "width": n,
            "size": size,
        }
        for each in groups
        for n, sizes in each.sizes.items()
        for size in sizes
    ]
    return facets(
        pl.DataFrame(rows),
        x=("width", "width n"),
        y=("size", "|g| of one component"),
        detail="group",
        facet="network",
        colour=("law", "expected"),
        colours={USUAL: BLUE, "1/√(Mn)": ORANGE, "1/√n_out": GREEN},
        title="Size of one gradient component by width",
        subtitle="a line each group of parameters; n_out = n, M = 4; band: one deviation",
    )


def _table(groups: Sequence[Group]) -> Section:
    n = max(groups[0].sizes)
    rows = [
        [
            each.network,
            each.group,
            FAN_OUT.get(each.group, USUAL),
            f"{each.slope.value:+.3f} [{each.slope.low:+.3f}, {each.slope.high:+.3f}]",
            f"{each.predicted:.4f}",
            "{:.4f} ± {:.4f}".format(*each.ratio(n)),
        ]
        for each in groups
    ]
    return Section(
        heading="Every group",
        text=f"Predicted is |g|·√fan_out at infinite width; the ratio is measured at n = {n}.",
        columns=("network", "group", "law", "exponent of n", "predicted", "measured / predicted"),
        rows=rows,
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("gradients at initialisation of 12 encoders, n up to 768, 32 networks a width")
