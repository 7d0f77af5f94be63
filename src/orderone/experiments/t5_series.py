"""The published points of T5's pretraining, [MRGSS21] Fig. 1, as the package ships them."""

from __future__ import annotations

from importlib.resources import as_file, files

from orderone.trajectory.series import from_points
from orderone.trajectory.told import Trajectory

START = 20_000
"""Laws are fitted from this step on, twice T5's 10,000 steps at a constant rate."""


def t5_series(*, start: float | None = START) -> Trajectory:
    """Groups ``plotted_total``, ``encoder_layer_1…12``, and ``encoder``, read as any series is."""
    with as_file(files("orderone.experiments") / "data" / "t5_series.csv") as path:
        return from_points(path, start=start)
