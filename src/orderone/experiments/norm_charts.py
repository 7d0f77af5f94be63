"""Numbers of several norm series over the steps, as charts of one form and as records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from orderone.experiments.reproduction import Stage
from orderone.report.charts import Picture, lines
from orderone.report.page import Section
from orderone.trajectory.told import Trajectory

Float = npt.NDArray[np.float64]
KINDS = ("total", "matrices", "gains", "biases")
"""Groups of a trajectory that together are its encoder."""
Numbers = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.float64]
Curves = Mapping[str, tuple[Numbers, Float]]
"""(steps, values) by name; what belongs to a spacing stands at its first checkpoint."""


def norm_chart(
    curves: Curves, *, y: str, title: str, colour: str, subtitle: str = "", root: bool = False
) -> Picture:
    """Lines over the step, or over its root."""
    rows = [
        (name, int(step), float(step) ** (0.5 if root else 1.0), float(value))
        for name, (steps, values) in curves.items()
        for step, value in zip(np.asarray(steps), np.asarray(values), strict=False)
        if np.isfinite(value)
    ]
    return lines(
        pl.DataFrame(rows, schema=["series", "step", "x", "value"], orient="row"),
        x=("x", "√step" if root else "step"),
        y=("value", y),
        colour=("series", colour),
        title=title,
        subtitle=subtitle,
    )


def norm_section(
    heading: str, curves: Curves, *, y: str, colour: str, root: bool = False, text: str = ""
) -> Section:
    """A section of one such chart."""
    return Section(
        heading=heading,
        text=text,
        chart=norm_chart(curves, y=y, title=heading, colour=colour, root=root),
        alternative=f"{y} over {'the root of the step' if root else 'the step'}, "
        f"a line for each of: {', '.join(curves)}",
    )


def keep_trajectory(
    stage: Stage, found: Trajectory, series: str, groups: Collection[str] | None = None
) -> None:
    """Its records, and alignment's share of growth by spacing in checkpoints."""
    for each in found.records():
        if groups is None or each.labels["group"] in groups:
            stage.record(each.name, each.value, step=each.step, series=series, **each.labels)
    for group, account in found.dynamics.items():
        if groups is not None and group not in groups:
            continue
        for lag, share in account.shares.items():
            if np.isfinite(share):
                stage.record("alignment_share", share, step=lag, series=series, group=group)


def averaged(steps: Numbers, values: Float, parts: int) -> tuple[Float, Float]:
    """(steps, values), each the mean over one of ``parts`` runs of equal length."""
    pairs = np.stack([np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)])
    blocks = np.array_split(pairs, min(parts, pairs.shape[1]), axis=1)
    means = np.stack([np.nanmean(block, axis=1) for block in blocks])
    return means[:, 0], means[:, 1]
