"""Levels of saturation as records and rows of tables: the cosine, never without its controls."""

from __future__ import annotations

from collections.abc import Sequence

from orderone.experiments.reproduction import Stage
from orderone.probes.saturation import Level

CONTROLS = {
    "cosine": "cosine",
    "se": "its error",
    "other": "two tokens of f",
    "cross": "two tokens, f and sf",
    "centred": "mean removed",
}
"""Numbers of a level, and what they are called."""
EXPLAINED = (
    "cosine: f(x; θ) and the saturated sf(x; θ), mean over real tokens. Controls: two different "
    "tokens, both in f (a constant network has 1), or one in f and one in sf (what chance gives); "
    "and the cosine once the mean over tokens is removed."
)


def keep_levels(stage: Stage, levels: Sequence[Level], **labels: str) -> None:
    """A record for every number of every layer."""
    for level in levels:
        for name in CONTROLS:
            value = getattr(level, name)
            if value is not None:
                stage.record(f"saturation.{name}", value, step=0, layer=level.layer, **labels)


def level_row(level: Level) -> tuple[str, ...]:
    """The numbers of ``CONTROLS``."""
    return tuple(written(getattr(level, name)) for name in CONTROLS)


def written(value: float | None) -> str:
    """Three digits; a dash where there is nothing to measure."""
    return "–" if value is None else f"{value:.3f}"
