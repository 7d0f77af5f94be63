"""How much the tour does at each stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of everything that takes time."""

    widths: tuple[int, ...]
    """Of the coordinate check, and of the networks beside the theory."""
    seeds: int
    """Models of each width in the coordinate check."""
    networks: int
    """Of each width beside the theory."""
    samples: int
    """Draws of the theory."""
    n: int
    """Width of the model that learns."""
    encoders: int
    T: int
    vocabulary: int
    text: int | None
    """Bytes of the standard library; None for all that the corpus takes."""
    steps: int
    checkpoints: int
    windows: int
    """Of held-out text, for saturation and heads."""


FULL = Size(
    widths=(64, 128, 256),
    seeds=6,
    networks=12,
    samples=65_536,
    n=96,
    encoders=4,
    T=64,
    vocabulary=2_000,
    text=None,
    steps=1_000,
    checkpoints=20,
    windows=16,
)
"""Under four minutes on two cores."""

QUICK = Size(
    widths=(16, 32),
    seeds=2,
    networks=4,
    samples=8_192,
    n=16,
    encoders=1,
    T=16,
    vocabulary=280,
    text=100_000,
    steps=24,
    checkpoints=12,
    windows=4,
)
"""Seconds: whether everything works, not what is true."""
