"""Small language models step by step: δ and θ, and what carries growth at every spacing.

Four runs as [MRGSS21] is written, both placements at a constant rate and at one ∝ 1/√t, and both
placements as the original was coded, at the constant rate of its optimizer's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from orderone.experiments.dry_run import DryRun
from orderone.experiments.norm_charts import KINDS, averaged, keep_trajectory
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_models import (
    SmallModel,
    TrainedModel,
    dry_run,
    paper_model,
    small_model,
    trained_all,
)
from orderone.report.page import Section
from orderone.trajectory.dynamics import Dynamics, dynamics
from orderone.trajectory.geometry import Neighbours
from orderone.trajectory.series import trajectory
from orderone.trajectory.told import Trajectory

Float = npt.NDArray[np.float64]

PLACEMENTS: tuple[Literal["branch", "post"], ...] = ("branch", "post")
FALLING = 3e-3
"""Highest rate of the runs at 1/√t, which falls below that of the others, 1e-3, at 9 warm-ups."""


def variants(model: Callable[..., SmallModel], *, warmup: int) -> list[SmallModel]:
    """The six of a scale; those as coded first, which take longest."""
    return [
        *(model(placement=each, mask="zero") for each in PLACEMENTS),
        *(model(placement=each) for each in PLACEMENTS),
        *(
            model(placement=each, schedule="inverse-sqrt", lr=FALLING, warmup=warmup)
            for each in PLACEMENTS
        ),
    ]


def paper_walks() -> DryRun:
    """All of them at the size of App. A."""
    return dry_run(variants(paper_model, warmup=_WARMUP))


_WARMUP = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """A training step by step, and by its checkpoints."""

    model: TrainedModel
    series: Trajectory

    @property
    def name(self) -> str:
        """Of its lines and rows: what tells one run of Penn from another."""
        chosen = self.model.chosen
        rate = "rate ∝ 1/√t" if chosen.schedule == "inverse-sqrt" else "constant rate"
        return f"{chosen.placement}, " + ("as coded" if chosen.mask == "zero" else rate)

    @property
    def written(self) -> bool:
        return self.model.chosen.mask == "causal"

    @property
    def grew(self) -> bool:
        """By enough that shares of growth say something."""
        return bool(self.steps.norm[-1] > 1.01 * self.steps.norm[0])

    @property
    def spacing(self) -> int:
        """Steps between checkpoints."""
        return self.series.steps[1] - self.series.steps[0]

    @property
    def checkpoints(self) -> Neighbours:
        return self.series.groups["total"]

    @cached_property
    def steps(self) -> Neighbours:
        """Of θ_0, θ_1, …: every step of the optimizer."""
        _, norm = self.model.values("norm")
        _, step_norm = self.model.values("step_norm")
        _, alignment = self.model.values("alignment")
        return Neighbours(
            norm=norm,
            step_norm=step_norm,
            alignment=alignment,
            one_minus_cosine=np.full(len(step_norm), np.nan),
        )

    @cached_property
    def shares(self) -> dict[int, float]:
        """Alignment's share of growth in norm² by spacing in steps; NaN where it did not grow."""
        by_checkpoint = self.series.dynamics["total"].shares
        return {1: self.steps.share} | {
            lag * self.spacing: share for lag, share in by_checkpoint.items()
        }

    @cached_property
    def by_step(self) -> Dynamics:
        """Both accounts of growth from single steps, and from the learning rates alone."""
        chosen, count = self.model.chosen, len(self.steps.step_norm)
        schedule = chosen.multiplier(count)
        rates = {t: chosen.lr * schedule(t) for t in range(count)}
        return dynamics(np.arange(count + 1), self.steps, None, rates)

    @property
    def by_checkpoint(self) -> Dynamics:
        """The same from the distances of checkpoints."""
        return self.series.dynamics["total"]

    def mean_alignment(self, parts: int = 40) -> tuple[Float, Float]:
        """(steps, cos(δ, θ) of single steps), means over parts of the training."""
        return averaged(np.arange(len(self.steps.alignment)), self.steps.alignment, parts)


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """Growth by each account over the growth that was measured: 1 where the account is exact."""

    misaligned: float
    """Σ‖δ‖² / (‖θ‖² − ‖θ_0‖²)."""
    aligned: float
    """Σ‖δ‖ / (‖θ‖ − ‖θ_0‖)."""

    @classmethod
    def of(cls, group: Neighbours) -> Accounted:
        start, end = float(group.norm[0]), float(group.norm[-1])
        return cls(
            misaligned=float(np.sum(group.step_norm**2)) / (end**2 - start**2),
            aligned=float(np.sum(group.step_norm)) / (end - start),
        )

    @property
    def is_misaligned(self) -> bool:
        """Whether misaligned growth is nearer, by ratio; both are positive where a norm grew."""
        return abs(math.log(self.misaligned)) < abs(math.log(self.aligned))

    @property
    def sentence(self) -> str:
        return f"misaligned {self.misaligned:.2f}, aligned {self.aligned:.1f}"


def walks(stage: Stage) -> list[Walk]:
    """Trained, or read where another experiment trained them."""
    warmup = stage.pick(smoke=5, laptop=40, paper=_WARMUP)
    models = trained_all(stage, variants(partial(small_model, stage), warmup=warmup))
    found = [Walk(model=each, series=trajectory(each.series)) for each in models]
    for each in found:
        _keep(stage, each)
    return found


def size(found: Sequence[Walk]) -> str:
    """What was trained, in words."""
    chosen = found[0].model.chosen
    return (
        f"{chosen.layers} layers, n {chosen.n}, {found[0].model.steps:,} steps on Penn, "
        f"checkpoints every {found[0].spacing} steps"
    )


def share_section(found: Sequence[Walk]) -> Section:
    """Alignment's share of growth at every spacing, as a table."""
    spacings = sorted({spacing for each in found for spacing in each.shares})
    return Section(
        heading="Alignment's share of growth by spacing",
        text="Part of Δ‖θ‖² that Σ 2θ·δ carries; Σ‖δ‖² carries the rest. Above 100% or negative "
        "where the norm fell.",
        columns=("spacing in steps", *(each.name for each in found)),
        rows=[
            (
                f"{spacing:,}",
                *(
                    f"{each.shares[spacing]:.0%}" if spacing in each.shares else ""
                    for each in found
                ),
            )
            for spacing in spacings
        ],
    )


def _keep(stage: Stage, walk: Walk) -> None:
    keep_trajectory(stage, walk.series, walk.name, KINDS)
    for name in ("alignment", "step_norm"):
        steps, values = averaged(
            np.arange(len(walk.steps.step_norm)), getattr(walk.steps, name), 40
        )
        for step, value in zip(steps, values, strict=True):
            stage.record(f"{name}_of_single_steps", value, step=round(step), series=walk.name)
    for spacing, share in walk.shares.items():
        if np.isfinite(share):
            stage.record("alignment_share_by_spacing", share, step=spacing, series=walk.name)
    for spacing, account in ((1, walk.by_step), (walk.spacing, walk.by_checkpoint)):
        stage.record("misaligned_error", account.misaligned, step=spacing, series=walk.name)
        stage.record("aligned_error", account.aligned, step=spacing, series=walk.name)
    for form, r2 in walk.by_step.scheduled.items():
        stage.record("scheduled_r2", r2, series=walk.name, form=form)
