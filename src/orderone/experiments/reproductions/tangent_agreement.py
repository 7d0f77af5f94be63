"""Measured neural tangent kernels are the predicted ones, group by group, for SGD and AdamW.

Source   [DYZ23] §I.3, eqs. (1.117)–(1.190), (1.95)
Expect   within 4 joint standard errors and (blocks)/n; a prediction whose cumulative part lacks J,
         what passes the scores, is excluded
Cost     smoke 15 s, laptop 6 min, paper 2 h on one core each
Differs  8 (sample, position) pairs; C_Q C_K = 5, so that attention is far from uniform; 16 channels
         a head; AdamW's language head is not tied
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from orderone.experiments.agreement import GROUP, Agreement, Comparison, agreement
from orderone.experiments.agreement_charts import records, side_by_side
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.specimens import language, vision
from orderone.experiments.without_scores import tangent_without_scores
from orderone.report.charts import Picture, estimates
from orderone.report.page import Section
from orderone.theory.spec import KernelSpec

PUBLISHED = "recursions (1.117)–(1.190) for Θ at n → ∞, J in the cumulative part of attention"

C = {"Q": 2.5, "K": 2.0, "V": 1.5, "U": 1.5, "position": 0.5}
PASSING = "position"
"""A group whose gradient all passes the blocks: its Θ at the head is cumulative part alone."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of network under one optimizer."""

    name: str
    found: Agreement
    without: Comparison | None
    """SGD's Θ of ``PASSING`` at the head beside a prediction without J."""

    @property
    def compared(self) -> list[Comparison]:
        """Θ of every block, and of every group at the head."""
        return [each for each in self.found.comparisons if each.quantity.startswith("Theta")]


def specs(encoders: int, samples: int) -> dict[str, KernelSpec]:
    """Vision, and language causal and not; SGD and AdamW."""
    settings = {"encoders": encoders, "samples": samples, "head_dim": 16, "by_group": True}
    kinds = {
        "vision": vision(C, **settings),
        "causal language": language(C, **settings),
        "bidirectional language": language(C, causal=False, **settings),
    }
    adamw = {
        f"{name}, AdamW": spec.replace(optimizer="adamw", head_tied=False)
        for name, spec in kinds.items()
    }
    return {**{f"{name}, SGD": spec for name, spec in kinds.items()}, **adamw}


def reproduce(stage: Stage) -> Outcome:
    """Six kinds, Θ of all blocks, all groups at the head, and SGD's without J."""
    widths = stage.pick(smoke=[128], laptop=[64, 128, 256, 512], paper=[128, 256, 512, 768])
    networks = stage.pick(smoke=12, laptop=32, paper=64)
    encoders = stage.pick(smoke=1, laptop=2, paper=2)
    samples = stage.pick(smoke=2**12, laptop=2**16, paper=2**19)
    cases: list[Case] = []
    for name, spec in specs(encoders, samples).items():
        found = agreement(
            spec,
            widths,
            networks=networks,
            processes=stage.processes,
            progress=stage.progress,
        )
        without = None if spec.optimizer == "adamw" else dropped(found)
        cases.append(Case(name=name, found=found, without=without))
        for record in records(found):
            stage.records.write(replace(record, labels={**record.labels, "of": name}))
        if without is not None:
            stage.record("overlap without J", without.overlap, step=without.width, of=name)
    return outcome(cases)


def dropped(found: Agreement) -> Comparison:
    """The widest networks' Θ of ``PASSING``, beside what is left of the prediction without J."""
    spec = found.predicted.spec
    rates = {**dict.fromkeys(("Q", "K", "V", "U", "W", "X"), 0.0), spec.input_group: 0.0}
    if not spec.tied:
        rates |= {"head": 0.0, "head_bias": 0.0}
    Theta = tangent_without_scores(spec.replace(Lambda={**rates, PASSING: spec.rate(PASSING)}))
    (right,) = (each for each in found.widest if each.quantity == f"{GROUP}{PASSING}")
    # Of single networks only the overlap with the right prediction is kept; their relative spread
    # is taken over, the mean is exact.
    mean = float((right.measured.value * Theta).sum() / Theta.square().sum())
    return replace(
        right,
        predicted=replace(right.predicted, value=Theta),
        overlaps=tuple(mean / right.overlap * overlap for overlap in right.overlaps),
    )


def outcome(cases: Sequence[Case]) -> Outcome:
    """All that is predicted agrees, and what has no J does not."""
    compared = [each for case in cases for each in case.compared]
    wrong = [each for each in compared if not each.agrees]
    without = [case.without for case in cases if case.without is not None]
    excluded = [each for each in without if not each.agrees]
    missing = [100 * (1 - 1 / each.overlap) for each in without]
    widths = cases[0].found.widths
    overlaps = [e.overlap for e in compared if e.quantity == "Theta" and e.width == max(widths)]
    why = ""
    if wrong:
        worst = max(wrong, key=lambda each: each.excess)
        why = f"Worst: {worst.quantity} of {worst.block} at n = {worst.width}."
    elif len(excluded) < len(without):
        why = "Some measurement is not sharp enough to exclude a prediction without J."
    return Outcome(
        measured=(
            f"{len(compared) - len(wrong)} of {len(compared)} tangent kernels agree at widths "
            f"{', '.join(map(str, widths))} ({cases[0].found.networks} networks each), Θ's "
            f"overlaps {min(overlaps):.3f} … {max(overlaps):.3f} at the widest; without J the "
            f"cumulative part is {min(missing):.0f} to {max(missing):.0f} % too small, which "
            f"{len(excluded)} of {len(without)} kinds of networks exclude"
        ),
        held=not wrong and len(excluded) == len(without),
        why=why,
        sections=_sections(cases),
    )


def _sections(cases: Sequence[Case]) -> list[Section]:
    sections = [
        Section(
            heading=f"Groups at the head, {optimizer}",
            chart=by_group([case for case in cases if case.name.endswith(optimizer)], optimizer),
            alternative="Measured over predicted tangent kernel of each group of parameters, "
            "around 1",
        )
        for optimizer in ("SGD", "AdamW")
        if any(case.name.endswith(optimizer) for case in cases)
    ]
    sections += [
        Section(
            heading=f"Entry by entry, {case.name}",
            chart=side_by_side(case.found, "Theta", title=f"Θ of {case.name}"),
            alternative="Measured entries of Θ over predicted ones, along the line of equality",
        )
        for case in (cases[0], cases[-1])
    ]
    return [*sections, _without(cases), _table(cases)]


def by_group(cases: Sequence[Case], optimizer: str) -> Picture:
    """Overlap of every group's Θ at the head of the widest networks."""
    width = max(cases[0].found.widths)
    rows = [
        {
            "group": "all" if each.quantity == "Theta" else each.quantity.removeprefix(GROUP),
            "network": case.name.removesuffix(f", {optimizer}"),
            "overlap": each.overlap,
            "error": each.overlap_se,
        }
        for case in cases
        for each in case.compared
        if each.width == width and each.block == "head"
    ]
    order = ["all", "patch", "word", "position", *"QKVUWX", "head", "head_bias"]
    frame = pl.DataFrame(rows).sort(pl.col("group").replace_strict(_places(order)))
    return estimates(
        frame,
        x=("group", "group of parameters"),
        y=("overlap", "Θ measured / predicted"),
        error="error",
        colour=("network", "network"),
        reference=(1.0, "equal"),
        title=f"Tangent kernel of each group, {optimizer}, n = {width}",
        subtitle=f"{cases[0].found.networks} networks of each kind",
    )


def _places(order: Sequence[str]) -> Mapping[str, int]:
    return {name: place for place, name in enumerate(order)}


def _without(cases: Sequence[Case]) -> Section:
    rows = [
        [
            case.name,
            f"{1 / case.without.overlap - 1:+.1%}",
            f"{case.without.overlap:.3f} ± {case.without.overlap_se:.3f}",
            f"{case.without.excess:.1f}",
        ]
        for case in cases
        if case.without is not None
    ]
    return Section(
        heading="Without the terms J",
        text="J carries the tangent kernel of earlier blocks through the scores. Measured Θ of "
        f"group {PASSING}, all of which passes, beside a prediction without it; gap in units of "
        "what is granted, above 1 is excluded.",
        columns=("network", "prediction against measurement", "overlap", "gap"),
        rows=rows,
    )


def _table(cases: Sequence[Case]) -> Section:
    rows = [
        [
            case.name,
            each.quantity.replace("Theta", "Θ"),
            each.block,
            f"{each.overlap:.3f} ± {each.overlap_se:.3f}",
            f"{each.excess:.2f}",
            "agrees" if each.agrees else "disagrees",
        ]
        for case in cases
        for each in case.compared
        if each.width == max(case.found.widths)
    ]
    return Section(
        heading=f"All kernels at width {max(cases[0].found.widths)}",
        columns=("network", "kernel", "block", "overlap", "gap / granted", "verdict"),
        rows=rows,
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("tangent kernels at initialisation, n up to 768, 64 networks a width")
