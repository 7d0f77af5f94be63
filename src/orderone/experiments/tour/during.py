"""During training: a language model learns real text, watched at every tenth step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from orderone.core.run import RunFolder
from orderone.experiments.run_config import RunConfig
from orderone.experiments.tour.stop import Stop
from orderone.experiments.training_run import train_run
from orderone.models.config import LanguageConfig, read_config
from orderone.probes.watch import Watch, watch
from orderone.report.charts import lines
from orderone.report.page import Section
from orderone.training.config import checked
from orderone.training.course import Outcome, Setting
from orderone.training.loop import Observer

WATCH_EVERY = 10
CHECKPOINTS = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """A run that has ended, and its network."""

    config: RunConfig
    run: RunFolder
    watched: RunFolder
    model: nn.Module
    outcome: Outcome


def lesson(steps: int, seed: int, words: int) -> RunConfig:
    """The sources of Python's standard library, and a model small enough for a laptop."""
    T = 128
    model = {"kind": "language", "n": 128, "H": 4, "encoders": 4, "T": T, "n_vocab": words}
    settings: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "batch_size": 16,
        "clip": 1.0,
        "evaluate_every": max(1, steps // 10),
        "checkpoint_every": max(1, steps // CHECKPOINTS),
        "keep": steps,
        "model": model,
        # N_rescale and factors at s = 0; the constants of the paper's language models.
        "plan": {"strategy": "neural-tangent", "constants": "language-word"},
        "data": {"corpus": "stdlib", "vocabulary": words, "T": T},
        "optimizer": {"lr": 1.0},
        "schedule": {"warmup": max(1, steps // 20)},
    }
    return checked(RunConfig, settings)


def model_config(config: RunConfig) -> LanguageConfig:
    """Letters of the model that learns."""
    found = read_config(config.model)
    assert isinstance(found, LanguageConfig)
    return found


def trained(config: RunConfig, to: Path, *, quiet: bool) -> Lesson:
    """The run as ``orderone train`` leaves it, beside what a watch saw of it."""
    watching: list[Watch] = []
    models: list[nn.Module] = []

    def attach(setting: Setting) -> Iterable[Observer]:
        models.append(setting.model)
        seen = watch(setting.model, setting.optimizer, to=to / "watch", every=WATCH_EVERY)
        watching.append(seen)
        return ()

    done = train_run(config, to=to / "training", attach=attach, quiet=quiet)
    for each in watching:
        each.close()
    return Lesson(
        config=config,
        run=done.run,
        watched=RunFolder.open(to / "watch"),
        model=models[-1].eval(),
        outcome=done.outcome,
    )


def told(lesson: Lesson) -> Stop:
    """Loss, and the alignment of steps, as the run's records have them."""
    losses = lesson.run.records().filter(name="loss").select("step", "value", "split")
    first = losses.filter(split="validation").sort("step")["value"][0]
    outcome = lesson.outcome
    words = model_config(lesson.config).n_vocab
    return Stop(
        found=(
            f"Training: {outcome.steps:,} steps at {outcome.tokens_per_second:,.0f} tokens/s "
            f"bring the validation loss from {first:.2f} to {outcome.validation:.2f} nats a token "
            f"({words:,} kinds of token)."
        ),
        sections=[_loss(losses), _alignment(lesson.watched.records())],
    )


def _loss(losses: pl.DataFrame) -> Section:
    # Training first, so that the smoother validation curve is drawn over it.
    chart = lines(
        losses.filter(pl.col("step") > 0).sort("split", "step"),
        x=("step", "step"),
        y=("value", "loss (nats a token)"),
        colour=("split", "text"),
        title="What the model learned",
    )
    words = "Training and validation loss against step"
    return Section(heading="During: loss", chart=chart, alternative=words)


def _alignment(seen: pl.DataFrame) -> Section:
    total = seen.filter(pl.col("by") == "total", name="alignment").select("step", "value")
    chart = lines(
        total.sort("step"),
        x=("step", "step"),
        y=("value", "cos(δ, θ)"),
        title="Alignment of a step with the parameters it changes",
        subtitle=f"Every {WATCH_EVERY}th step; 0 is a step at right angles, which adds to the norm",
    )
    return Section(
        heading="During: alignment",
        chart=chart,
        alternative="Cosine of step and parameters against step",
    )
