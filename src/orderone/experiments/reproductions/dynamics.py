"""Misaligned dynamics, not aligned dynamics, account for the growth of the norm.

Source   [MRGSS21] §5.3, §5.4, App. E: ‖θ‖ ∝ exp(Ση) if aligned, ‖θ_t‖² = ‖θ_0‖² + Σ‖δ‖² if not
Expect   between checkpoints, growth by Σ‖δ‖² nearer by ratio to that of ‖θ‖² than Σ‖δ‖ to that of
         ‖θ‖, for T5 and every run that grew; at a rate 1/√t, √t fits better than exp(√t)
Cost     smoke 20 s on one core; laptop 12 min on 2 cores; paper 0.1 h at 100 TFLOP/s; the models
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
from orderone.experiments.small_steps import (
    Accounted,
    Walk,
    paper_walks,
    share_section,
    size,
    walks,
)
from orderone.experiments.t5_series import t5_series
from orderone.report.page import Section
from orderone.trajectory.told import Trajectory

PUBLISHED = "T5 follows √t, which misaligned dynamics predict at a rate 1/√t; aligned: exp(√t)"


def reproduce(stage: Stage) -> Outcome:
    """Both accounts of each run, with nothing fitted and from learning rates alone."""
    t5, found = t5_series(), walks(stage)
    written = [each for each in found if each.written]
    encoder = t5.laws["encoder"].fits
    return Outcome(
        measured="growth by each account over growth measured. T5's encoder: "
        f"{Accounted.of(t5.groups['encoder']).sentence}; r² of √t {encoder['sqrt'].r2:.5f}, of "
        f"exp(c√t) {encoder['exp-sqrt'].r2:.5f}. Ours ({size(found)}): {_told(written)}",
        # Norms hardly move in the smallest scale's steps.
        held=None if stage.scale == "smoke" else _held(written),
        why=_why(written),
        as_coded=f"under the mask of zeros: {_told([e for e in found if not e.written])}",
        sections=_sections(found),
    )


def paper() -> DryRun:
    """Our runs at the size of App. A."""
    return paper_walks()


def _r2(series: Trajectory, law: str) -> float:
    fits = series.laws["total"].fits
    return fits[law].r2 if law in fits else float("nan")


def _held(written: Sequence[Walk]) -> bool | None:
    """Whether misaligned growth is nearer in every run; None where some norm did not grow."""
    if not all(each.grew for each in written):
        return None
    return _is_root(written) and all(
        Accounted.of(each.checkpoints).is_misaligned for each in written
    )


def _is_root(written: Sequence[Walk]) -> bool:
    """Whether √t fits better than exp(c√t) at every rate ∝ 1/√t."""
    falling = [each for each in written if each.model.chosen.schedule == "inverse-sqrt"]
    return all(_r2(each.series, "sqrt") > _r2(each.series, "exp-sqrt") for each in falling)


def _told(found: Sequence[Walk]) -> str:
    return "; ".join(f"{each.name}: {_accounted(each)}" for each in found)


def _accounted(walk: Walk) -> str:
    if not walk.grew:
        return f"‖θ‖ × {walk.steps.norm[-1] / walk.steps.norm[0]:.3f}, no growth to account for"
    single, apart = Accounted.of(walk.steps), Accounted.of(walk.checkpoints)
    return f"{apart.sentence} between checkpoints, {single.sentence} from single steps"


def _why(written: Sequence[Walk]) -> str:
    text = "Nothing is fitted: steps are measured."
    if any(each.grew for each in written):
        text += (
            " No spacing is the right one: what Σ‖δ‖² leaves to alignment shrinks as checkpoints "
            "lie further apart."
        )
    still = [each.name for each in written if not each.grew]
    if still:
        text += f" The norm of {' and '.join(still)} grew by less than 1%: too little to tell."
    if not _is_root(written):
        text += " At a rate ∝ 1/√t some norm fits exp(c√t) as well as a√t + b."
    return text


def _sections(found: Sequence[Walk]) -> list[Section]:
    by_growth = sorted(found, key=lambda each: -each.steps.norm[-1] / each.steps.norm[0])
    return [
        *(_accounts(each) for each in by_growth if each.written),
        Section(
            heading="Errors of both accounts",
            text="Root mean square of the account over ‖θ‖, less 1: small for both where the norm "
            "hardly changed. Growth is each account's over the measured one. The last two columns "
            "need no steps, only learning rates: r² of ‖θ‖² = a + bΣη² and of log ‖θ‖ = a + bΣη.",
            columns=(
                "run",
                "spacing",
                "misaligned",
                "aligned",
                "growth, misaligned",
                "growth, aligned",
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
            f"{Accounted.of(group).misaligned:.2f}" if walk.grew else "–",
            f"{Accounted.of(group).aligned:.1f}" if walk.grew else "–",
            f"{forms['misaligned']:.3f}" if spacing == 1 else "",
            f"{forms['aligned']:.3f}" if spacing == 1 else "",
        )
        for spacing, account, group in (
            (1, walk.by_step, walk.steps),
            (walk.spacing, walk.by_checkpoint, walk.checkpoints),
        )
    ]


def _laws(walk: Walk) -> tuple[str, ...]:
    fits = walk.series.laws["total"].fits
    values = [f"{_r2(walk.series, law):.4f}" for law in ("sqrt", "exp-sqrt", "linear")]
    return (walk.name, *values, f"{fits['power'].shape:.2f}" if "power" in fits else "–")
