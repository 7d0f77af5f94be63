"""During training: a language model learns real text, watched at every tenth step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from orderone.core.run import RunFolder
from orderone.experiments.run_config import RunConfig
from orderone.experiments.tour.size import Size
from orderone.experiments.tour.stop import Stop
from orderone.experiments.training_run import train_run
from orderone.models.build import build
from orderone.models.config import LanguageConfig, read_config
from orderone.probes.watch import Watch, watch
from orderone.report.charts import lines
from orderone.report.page import Section
from orderone.scaling.plan import plan
from orderone.training.config import checked
from orderone.training.course import Outcome, Setting
from orderone.training.loop import Observer

WATCH_EVERY = 10
STRATEGY = "maximal-update"
"""The head is tied, and what it says of the word just read is of order one at s = 1 alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """A run that has ended, and its network."""

    config: RunConfig
    run: RunFolder
    watched: RunFolder
    model: nn.Module
    outcome: Outcome


def lesson(size: Size, seed: int) -> RunConfig:
    """The sources of Python's standard library, and a model small enough for a laptop."""
    T, words, steps = size.T, size.vocabulary, size.steps
    settings: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "batch_size": 16,
        "clip": 1.0,
        "evaluate_every": max(1, steps // 10),
        "checkpoint_every": max(1, steps // size.checkpoints),
        "keep": steps,
        "model": {
            "kind": "language",
            "n": size.n,
            "H": 4,
            "encoders": size.encoders,
            "T": T,
            "n_vocab": words,
        },
        "plan": {"strategy": STRATEGY, "constants": "language-word"},
        "data": {"corpus": "stdlib", "limit": size.text, "vocabulary": words, "T": T},
        "optimizer": {"lr": 0.3},
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


def untrained(lesson: Lesson, seed: int) -> nn.Module:
    """The same network as its plan starts it, from another seed."""
    model = build(model_config(lesson.config), seed=seed)
    asked = lesson.config.plan
    plan(model, asked.strategy, constants=asked.constants).initialize_(seed=seed)
    return model


def told(lesson: Lesson) -> Stop:
    """Loss, and the alignment of steps, as the run's records have them."""
    losses = lesson.run.records().filter(name="loss").select("step", "value", "split")
    validation = losses.filter(split="validation").sort("step")["value"]
    first, last = float(validation[0]), float(validation[-1])
    outcome, words = lesson.outcome, model_config(lesson.config).n_vocab
    parameters = sum(each.numel() for each in lesson.model.parameters())
    even = math.log(words)
    return Stop(
        name="training",
        found=(
            f"Training: {outcome.steps:,} steps of a model with {parameters:,} parameters, at "
            f"{outcome.tokens_per_second:,.0f} tokens/s, bring the loss on text held out from "
            f"{first:.2f} to {last:.2f} nats a token; to guess evenly among {words:,} costs "
            f"{even:.2f}."
        ),
        numbers={
            "parameters": parameters,
            "steps": outcome.steps,
            "tokens_per_second": outcome.tokens_per_second,
            "loss_before": first,
            "loss_after": last,
            "loss_of_guessing": even,
        },
        sections=[_loss(losses, even), _alignment(lesson.watched.records())],
    )


def _loss(losses: pl.DataFrame, even: float) -> Section:
    # Training first, so that the smoother validation curve is drawn over it.
    chart = lines(
        losses.filter(pl.col("step") > 0).sort("split", "step"),
        x=("step", "step"),
        y=("value", "loss (nats a token)"),
        colour=("split", "text"),
        title="What the model learned",
        subtitle=f"Guessing evenly: {even:.2f} nats",
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
