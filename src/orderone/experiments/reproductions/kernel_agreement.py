"""Measured kernels G and F are the infinite-width ones, but for 1/√n of chance and 1/n of bias.

Source   [DYZ23] §I.1, eqs. (1.36)–(1.84)
Expect   within 4 joint standard errors and (blocks)/n; one network's error ∝ n^(−½) within 0.1;
         the mean's bias ∝ n^(−1) within 0.2 and its interval, in the kernel that shows it best
Cost     smoke 10 s, laptop 5 min, paper 1 h on one core each
Differs  kernels of 8 (sample, position) pairs; 16 channels a head at any width but the paper's n;
         C_Q = C_K = 3/2 and others 1, so that attention is far from uniform and adds its share;
         the bias on narrow networks of placement post with ε = ½, where it stands out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from orderone.experiments.agreement import Agreement, agreement, bias_slope
from orderone.experiments.agreement_charts import errors_by_width, matrices, records, side_by_side
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.slope import Estimate
from orderone.experiments.specimens import language, vision
from orderone.report.charts import Picture, estimates
from orderone.report.page import Section
from orderone.theory.spec import KernelSpec

PUBLISHED = "recursions (1.36)–(1.84) for G and F at n → ∞, with corrections of order 1/n"

C = {"Q": 1.5, "K": 1.5, "position": 0.3}
CHANCE = -0.5
CHANCE_WITHIN = 0.1
BIAS = -1.0
BIAS_WITHIN = 0.2
BIASED = {"placement": "post", "epsilon": 0.5}
"""Where layer norm's ε counts, G's fluctuations bias F by a 1/n that many networks resolve."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of network: few wide ones for the verdict, many narrow ones for the bias."""

    name: str
    wide: Agreement
    narrow: Agreement

    @property
    def biases(self) -> dict[tuple[str, str], Estimate]:
        """Exponents of the biases that every width resolves."""
        places = dict.fromkeys((each.quantity, each.block) for each in self.narrow.comparisons)
        found = {place: bias_slope(self.narrow.of(*place)) for place in places}
        return {place: slope for place, slope in found.items() if slope is not None}


def specs(encoders: int, samples: int) -> dict[str, KernelSpec]:
    """Vision and causal language; the latter's head is tied."""
    settings = {"encoders": encoders, "samples": samples, "head_dim": 16}
    return {"vision": vision(C, **settings), "causal language": language(C, **settings)}


def reproduce(stage: Stage) -> Outcome:
    """Two kinds of networks at several widths, G and F of every block."""
    widths = stage.pick(smoke=[32, 64, 128], laptop=[64, 128, 256, 512], paper=[128, 256, 512, 768])
    networks = stage.pick(smoke=16, laptop=48, paper=96)
    narrow = stage.pick(smoke=[16, 32], laptop=[16, 32, 64], paper=[16, 32, 64, 128])
    many = stage.pick(smoke=100, laptop=3000, paper=12000)
    encoders = stage.pick(smoke=1, laptop=2, paper=4)
    cases: list[Case] = []
    for name, spec in specs(encoders, stage.pick(smoke=2**13, laptop=2**17, paper=2**20)).items():
        wide = _agreement(stage, spec, widths, networks)
        biased = spec.replace(**BIASED)
        cases.append(Case(name=name, wide=wide, narrow=_agreement(stage, biased, narrow, many)))
        for record in records(wide):
            stage.records.write(
                type(record)(record.step, record.name, record.value, {**record.labels, "of": name})
            )
        _record_biases(stage, cases[-1])
    return outcome(cases)


def _agreement(stage: Stage, spec: KernelSpec, widths: Sequence[int], networks: int) -> Agreement:
    return agreement(
        spec,
        widths,
        networks=networks,
        tangents=False,
        processes=stage.processes,
        progress=stage.progress,
    )


def _record_biases(stage: Stage, case: Case) -> None:
    for each in case.narrow.comparisons:
        labels = {"of": case.name, "quantity": each.quantity, "block": each.block}
        stage.record("bias", each.overlap - 1, step=each.width, **labels)
        stage.record("error of bias", each.overlap_se, step=each.width, **labels)


def outcome(cases: Sequence[Case]) -> Outcome:
    """All kernels within what is granted, and both exponents as they should be."""
    compared = [each for case in cases for each in case.wide.comparisons]
    disagreeing = [each for each in compared if not each.agrees]
    chance = mean_slope([s for case in cases for s in case.wide.slopes.values()])
    biases = [slope for case in cases for slope in case.biases.values()]
    bias = min(biases, key=lambda slope: slope.high - slope.low) if biases else None
    widths = ", ".join(map(str, cases[0].wide.widths))
    most = max(each.excess for each in compared)
    said = (
        f"{len(compared) - len(disagreeing)} of {len(compared)} kernels agree at widths {widths} "
        f"({cases[0].wide.networks} networks each), the worst at {most:.2f} of what is granted; "
        f"one network's error ∝ n^{chance:.2f}"
    )
    if bias is not None:
        said += (
            f"; the mean's bias ∝ n^{bias.value:.2f} ± {bias.high - bias.value:.2f} where it is "
            f"sharpest of {len(biases)} kernels that show it"
        )
    right = abs(chance - CHANCE) <= CHANCE_WITHIN
    right = right and (bias is None or bias.low - BIAS_WITHIN <= BIAS <= bias.high + BIAS_WITHIN)
    why = "" if bias is not None else "So few networks do not resolve the mean's bias."
    if disagreeing:
        worst = max(disagreeing, key=lambda each: each.excess)
        why = f"Worst: {worst.quantity} of {worst.block} at n = {worst.width}."
    return Outcome(
        measured=said, held=not disagreeing and right, why=why, sections=_sections(cases)
    )


def mean_slope(slopes: Sequence[Estimate]) -> float:
    """Of several kernels, which fluctuate together."""
    return sum(slope.value for slope in slopes) / len(slopes)


def _sections(cases: Sequence[Case]) -> list[Section]:
    first = cases[0].wide
    sections = [
        Section(
            heading="Entry by entry",
            chart=side_by_side(first, "G", title=f"Kernel G of {cases[0].name} networks"),
            alternative="Measured entries of G over predicted ones, along the line of equality",
        )
    ]
    for case in cases:
        sections.append(
            Section(
                heading=f"Distance by width, {case.name}",
                chart=errors_by_width(case.wide),
                alternative="Distance to the prediction against width, of single networks and of "
                "their mean, on log-log axes",
            )
        )
    sections.append(
        Section(
            heading="The mean's bias",
            chart=biases_by_width(cases[0]),
            alternative="Bias of G and F at the head against width, with a line in 1/n",
        )
    )
    sections.append(
        Section(
            heading="G by block",
            chart=matrices(first, "G"),
            alternative="G of every block as matrices, predicted and measured",
        )
    )
    return [*sections, _table(cases)]


def biases_by_width(case: Case) -> Picture:
    """|overlap − 1| of the networks' mean at the head, with its 1/n."""
    place = max(each.place for each in case.narrow.comparisons)
    at = [each for each in case.narrow.comparisons if each.place == place]
    frame = pl.DataFrame(
        {
            "kernel": [each.quantity for each in at],
            "width": [each.width for each in at],
            "bias": [abs(each.overlap - 1) for each in at],
            "error": [each.overlap_se for each in at],
        }
    )
    level = (pl.col("bias") * pl.col("width")).mean().over("kernel")
    return estimates(
        frame.with_columns((level / pl.col("width")).alias("of 1/n")),
        x=("width", "width n"),
        y=("bias", "|overlap − 1| of the mean"),
        error="error",
        colour=("kernel", "kernel"),
        reference=("of 1/n", "∝ 1/n"),
        title=f"Bias of the mean at the {at[0].block}, {case.name}",
        subtitle=f"{case.narrow.networks} networks at every width, placement post, ε = ½",
        log_x=True,
        log_y=True,
    )


def _table(cases: Sequence[Case]) -> Section:
    rows = [
        [
            case.name,
            each.quantity,
            each.block,
            f"{each.overlap:.4f} ± {each.overlap_se:.4f}",
            shown(case.wide.slopes.get((each.quantity, each.block))),
            shown(case.biases.get((each.quantity, each.block))),
            "agrees" if each.agrees else "disagrees",
        ]
        for case in cases
        for each in case.wide.widest
    ]
    return Section(
        heading=f"At width {max(cases[0].wide.widths)}",
        text="Overlap is ⟨measured, predicted⟩ / ‖predicted‖². Slopes are exponents of n: of one "
        "network's error, and of the mean's bias where every narrow width resolves it.",
        columns=(
            "network",
            "kernel",
            "block",
            "overlap",
            "slope of error",
            "slope of bias",
            "verdict",
        ),
        rows=rows,
    )


def shown(slope: Estimate | None) -> str:
    """A slope with its interval."""
    return "" if slope is None else f"{slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]"


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("kernels at initialisation, n up to 768 with 4 encoders, 96 networks a width")
