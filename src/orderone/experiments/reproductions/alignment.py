"""Steps align with the parameters early in training, then less and less.

Source   [MRGSS21] §5.5, Fig. 5: cos(δ, θ) and ‖δ‖ over T5's pretraining
Expect   between checkpoints |cos(δ, θ)| never above 0.3 and at the end below 0.05, for T5 and in
         each of our runs; alignment's share of growth told at every spacing
Cost     smoke 20 s on one core; laptop 12 min on 2 cores; paper 0.1 h at 100 TFLOP/s; the models
         are those of dynamics, and at a constant rate those of small-lm
Differs  beside T5's published points: small language models on Penn, at a constant rate and at
         one ∝ 1/√t. laptop: 4 layers, n 128, one epoch; smoke: 2 layers, n 32, 800 sentences
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orderone.experiments.alignment_course import Course
from orderone.experiments.dry_run import DryRun
from orderone.experiments.norm_charts import norm_section
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.small_steps import Walk, paper_walks, share_section, size, walks
from orderone.experiments.t5_series import t5_series
from orderone.report.page import Section
from orderone.trajectory.told import Trajectory

PUBLISHED = "T5's cosine rises to about 0.15, then decays to near 0; ‖δ‖ changes by less than 20"
_COLOUR = "run"


def reproduce(stage: Stage) -> Outcome:
    """Alignment of T5 and of our runs, at several spacings."""
    t5, found = t5_series(), walks(stage)
    written = [each for each in found if each.written]
    encoder = Course.of(t5.groups["encoder"])
    falls = encoder.falls and all(Course.of(each.checkpoints).falls for each in written)
    return Outcome(
        measured=f"T5's encoder, every {t5.steps[-2] - t5.steps[-3]:,} steps: {encoder.sentence}. "
        f"Ours ({size(found)}), peak and end: {_told(written)}",
        held=falls or (None if stage.scale == "smoke" else False),
        why=_why(written),
        as_coded=f"T5's plotted total, encoder and decoder: "
        f"{Course.of(t5.groups['plotted_total']).sentence}. Ours under the mask of zeros: "
        f"{_told([each for each in found if not each.written])}",
        sections=_sections(t5, found),
    )


def paper() -> DryRun:
    """T5's points are published; our runs at the size of App. A."""
    return paper_walks()


def _told(found: Sequence[Walk]) -> str:
    return "; ".join(
        f"{each.name}: {Course.of(each.checkpoints).peak:.3f} to "
        f"{Course.of(each.checkpoints).end:.3f}, {_shares(each)}"
        for each in found
    )


def _shares(walk: Walk) -> str:
    """Alignment's, at single steps, between checkpoints, and over a quarter of the series."""
    if not walk.grew:
        return f"‖θ‖ × {walk.steps.norm[-1] / walk.steps.norm[0]:.3f}"
    quarter = max(s for s in walk.shares if s <= max(walk.spacing, walk.model.steps / 4))
    spacings = sorted({1, walk.spacing, quarter})
    told = ", ".join(f"{walk.shares[each]:.0%} at {each}" for each in spacings)
    return f"share of growth {told} steps"


def _why(written: Sequence[Walk]) -> str:
    grown = [each for each in written if each.grew]
    text = "Whether steps are 'misaligned' depends on their spacing"
    if grown:
        text += (
            f": of growth in norm² alignment carries {_range(each.shares[1] for each in grown)} "
            f"step by step, {_range(each.shares[each.spacing] for each in grown)} between "
            "checkpoints (runs whose norm grew by 1% or more)"
        )
    return (
        f"{text}. Successive steps go in similar directions, so over a longer spacing ‖δ‖² grows "
        "faster than the spacing and takes over."
    )


def _range(shares: Iterable[float]) -> str:
    values = sorted(shares)
    return f"{values[0]:.0%} to {values[-1]:.0%}"


def _sections(t5: Trajectory, found: Sequence[Walk]) -> list[Section]:
    at = {each.name: each.series.steps for each in found}
    pair = {"encoder": t5.groups["encoder"], "total": t5.groups["plotted_total"]}
    return [
        norm_section(
            "Alignment between checkpoints, trained here",
            {each.name: (at[each.name], each.checkpoints.alignment) for each in found},
            y="cos(δ, θ)",
            colour=_COLOUR,
            text=f"δ over {found[0].spacing} steps.",
        ),
        norm_section(
            "Alignment of single steps, trained here",
            {each.name: each.mean_alignment() for each in found},
            y="cos(δ, θ), mean over a fortieth of the run",
            colour=_COLOUR,
        ),
        norm_section(
            "Step size between checkpoints, trained here",
            {each.name: (at[each.name], each.checkpoints.step_norm) for each in found},
            y="‖δ‖",
            colour=_COLOUR,
        ),
        norm_section(
            "Alignment of T5-base, Fig. 5 left",
            {name: (t5.steps, each.alignment) for name, each in pair.items()},
            y="cos(δ, θ)",
            colour="parameters of",
            text="From the published norms and cosines: 2θ·δ + ‖δ‖² = Δ‖θ‖².",
        ),
        share_section(found),
    ]
