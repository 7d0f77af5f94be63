"""Misaligned dynamics, not aligned dynamics, account for the growth of the norm.

Source   [MRGSS21] §5.3, §5.4, App. E: ‖θ‖ ∝ exp(Ση) if aligned, ‖θ_t‖² = ‖θ_0‖² + Σ‖δ‖² if not
Expect   between checkpoints, ‖θ_0‖² + Σ‖δ‖² nearer to ‖θ‖² than aligned growth in every run; at a
         rate 1/√t the norm fits √t better than exp(√t)
Cost     smoke 20 s on one core; laptop 12 min on 2 cores; paper a day on one large GPU; the models
         are those of alignment, and at a constant rate those of small-lm
Differs  small language models on Penn beside T5's published points. laptop: 4 layers, n 128, one
         epoch; smoke: 2 layers, n 32, 800 sentences
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderone.experiments.dry_run import DryRun
from orderone.experiments.norm_charts import norm_section
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.reproductions.alignment import share_section
from orderone.experiments.small_steps import Walk, paper_walks, size, walks
from orderone.experiments.t5_series import t5_series
from orderone.report.page import Section
from orderone.trajectory.dynamics import Dynamics
from orderone.trajectory.series import Trajectory

PUBLISHED = "T5 follows √t, which misaligned dynamics predict at a rate 1/√t; aligned: exp(√t)"


def reproduce(stage: Stage) -> Outcome:
    """Both accounts of each run, with nothing fitted and from learning rates alone."""
    t5, found = t5_series(), walks(stage)
    written = [each for each in found if each.written]
    better = all(each.by_checkpoint.verdict == "misaligned" for each in written)
    falling = [each for each in written if each.model.chosen.schedule == "inverse-sqrt"]
    root = all(_r2(each.series, "sqrt") > _r2(each.series, "exp-sqrt") for each in falling)
    return Outcome(
        measured=f"T5's encoder: {_errors(t5.dynamics['encoder'])}; r² of √t "
        f"{t5.laws['encoder'].fits['sqrt'].r2:.5f}, of exp(c√t) "
        f"{t5.laws['encoder'].fits['exp-sqrt'].r2:.5f}. Ours ({size(found)}): {_told(written)}",
        held=(better and root) or (None if stage.scale == "smoke" else False),
        why=_why(written, better=better, root=root),
        as_coded=f"under the mask of zeros: {_told([e for e in found if not e.written])}",
        sections=_sections(found),
    )


def paper() -> DryRun:
    """Our runs at the size of App. A."""
    return paper_walks()


def _r2(series: Trajectory, law: str) -> float:
    fits = series.laws["total"].fits
    return fits[law].r2 if law in fits else float("nan")


def _errors(account: Dynamics) -> str:
    return f"off by {account.misaligned:.1%} if misaligned, {account.aligned:.0%} if aligned"


def _told(found: Sequence[Walk]) -> str:
    return "; ".join(
        f"{each.name}: {_errors(each.by_checkpoint)} ({each.by_step.misaligned:.1%} and "
        f"{each.by_step.aligned:.0%} from single steps)"
        for each in found
    )


def _why(written: Sequence[Walk], *, better: bool, root: bool) -> str:
    text = "Nothing is fitted: steps are measured."
    grown = [each for each in written if each.grew]
    if grown:
        single, apart = ([1 - each.shares[k] for each in grown] for k in (1, grown[0].spacing))
        text += (
            f" Σ‖δ‖² makes {min(apart):.0%} to {max(apart):.0%} of growth in norm² between "
            f"checkpoints, but {min(single):.0%} to {max(single):.0%} step by step: single steps "
            "are far from aligned, and yet alignment carries much of the growth."
        )
    if not better:
        text += " In some run the two errors are within a factor 1.5, which does not tell."
    if not root:
        text += " At a rate ∝ 1/√t some norm is as near to exp(c√t) as to a√t + b."
    return text


def _sections(found: Sequence[Walk]) -> list[Section]:
    return [
        *(_accounts(each) for each in found if each.written),
        Section(
            heading="Errors of both accounts",
            text="Root mean square of the account over ‖θ‖, less 1. The last two columns need no "
            "steps, only learning rates: r² of ‖θ‖² = a + bΣη² and of log ‖θ‖ = a + bΣη.",
            columns=(
                "run",
                "spacing",
                "misaligned",
                "aligned",
                "r², Ση²",
                "r², Ση",
            ),
            rows=[row for each in found for row in _rows(each)],
        ),
        Section(
            heading="Laws of the norm",
            text=" ".join(f"{each.name}: {each.series.laws['total'].sentence}." for each in found),
            columns=("run", "r², a√t + b", "r², a exp(c√t)", "r², at + b", "free power"),
            rows=[_laws(each) for each in found],
        ),
        share_section(found),
    ]


def _accounts(walk: Walk) -> Section:
    """The norm beside both accounts, from checkpoints and from single steps."""
    steps, group = np.array(walk.series.steps), walk.checkpoints
    squares = np.concatenate([[0.0], np.cumsum(group.step_norm**2)])
    single = np.concatenate([[0.0], np.cumsum(walk.steps.step_norm**2)])[steps]
    straight = np.concatenate([[0.0], np.cumsum(group.step_norm)])
    start = group.norm[0]
    return norm_section(
        f"The norm and two accounts of it: {walk.name}",
        {
            "measured": (steps, group.norm),
            "misaligned, between checkpoints": (steps, np.sqrt(start**2 + squares)),
            "misaligned, single steps": (steps, np.sqrt(start**2 + single)),
            "aligned, between checkpoints": (steps, start + straight),
        },
        y="‖θ‖",
        colour="account",
    )


def _rows(walk: Walk) -> list[tuple[str, ...]]:
    forms = walk.by_step.scheduled
    return [
        (
            walk.name,
            f"{spacing:,}",
            f"{account.misaligned:.2%}",
            f"{account.aligned:.1%}",
            f"{forms['misaligned']:.3f}" if spacing == 1 else "",
            f"{forms['aligned']:.3f}" if spacing == 1 else "",
        )
        for spacing, account in ((1, walk.by_step), (walk.spacing, walk.by_checkpoint))
    ]


def _laws(walk: Walk) -> tuple[str, ...]:
    fits = walk.series.laws["total"].fits
    values = [f"{_r2(walk.series, law):.4f}" for law in ("sqrt", "exp-sqrt", "linear")]
    return (walk.name, *values, f"{fits['power'].shape:.2f}" if "power" in fits else "–")
