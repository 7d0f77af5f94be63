"""What an experiment's exact setting takes, known without running it."""

from __future__ import annotations

from dataclasses import dataclass

from orderone.core.errors import ModelError
from orderone.models.build import build
from orderone.models.config import Config

WORDS_OF_ADAMW = 4
"""Float32 numbers a parameter: weight, gradient and two moments."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What the exact setting takes: nothing of it is run."""

    parameters: int
    """Of one model."""
    steps: int
    """Of all trainings together."""
    tokens: int
    """Tokens (or patches) seen in all trainings together."""
    flops: float
    """6 × parameters × tokens where a model is trained."""
    memory_bytes: int
    """Weights, gradients and AdamW's two moments in float32; activations not counted."""
    note: str = ""

    def hours(self, flops_per_second: float) -> float:
        """At that speed."""
        return self.flops / flops_per_second / 3600


def untrained(note: str) -> DryRun:
    """Of an experiment in which nothing is trained."""
    return DryRun(parameters=0, steps=0, tokens=0, flops=0.0, memory_bytes=0, note=note)


def trainings(
    config: Config,
    *,
    count: int,
    steps: int,
    tokens_per_step: int,
    published: int | None = None,
    note: str = "",
) -> DryRun:
    """``count`` trainings of a model, whose parameters are counted on the meta device.

    ModelError where they are not the ``published`` number.
    """
    model = build(config, device="meta")
    parameters = sum(each.numel() for each in model.parameters())
    if published is not None and parameters != published:
        raise ModelError(
            f"{parameters:,} parameters",
            expected=f"{published:,}, the published number",
            do="correct the model's configuration",
        )
    tokens = count * steps * tokens_per_step
    return DryRun(
        parameters=parameters,
        steps=count * steps,
        tokens=tokens,
        flops=6.0 * parameters * tokens,
        memory_bytes=4 * WORDS_OF_ADAMW * parameters,
        note=note,
    )
