"""The page of a checkpoint series: growth, direction, alignment and step, path, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from orderone.report.charts import lines
from orderone.report.fitted import fitted
from orderone.report.page import Section
from orderone.trajectory.laws import told

if TYPE_CHECKING:
    from orderone.trajectory.told import Trajectory

_MOST = 7  # groups that one chart's colours tell apart


def sections(result: Trajectory) -> list[Section]:
    """The page's parts; those without data are left out."""
    layers = [name for name in result.groups if "layer" in name]
    spoken = result.headline[:_MOST]
    found = [_findings(result)]
    if len(result.steps) > 1:
        found += [_growth(result, spoken, *_GROWTH), _laws(result)]
        found += [_growth(result, _spread(layers), *_BY_LAYER), _by_layer(result, layers)]
        found += [_series(result, spoken, *what) for what in (_DIRECTION, _STEP, _ALIGNMENT)]
        found += [_shares(result), *_path(result)]
    return [each for each in found if each is not None]


_GROWTH = ("Growth", "Norm over steps, a line each group, with the law that fits best")
_BY_LAYER = ("Growth by layer", "Norm over steps, a line each layer, with the law that fits best")
_DIRECTION = (
    "one_minus_cosine",
    "Direction",
    "1 − cos(θ_t, θ_t+1)",
    "1 − cosine of successive checkpoints over steps",
)
_STEP = ("step_norm", "Step size", "‖δ‖", "Norm of the step between checkpoints over steps")
_ALIGNMENT = ("alignment", "Alignment", "cos(δ, θ)", "Alignment of steps with parameters")


def _spread(names: list[str]) -> list[str]:
    """Few of many layers, first and last among them."""
    places = np.unique(np.linspace(0, len(names) - 1, min(_MOST, len(names))).round().astype(int))
    return [names[i] for i in places]


def _series(
    result: Trajectory, names: list[str], what: str, heading: str, label: str, alternative: str
) -> Section | None:
    rows: list[tuple[str, int, float | None]] = [
        (name, step, float(value))
        for name in names
        for step, value in zip(result.steps, getattr(result.groups[name], what), strict=False)
        if np.isfinite(value) and (what != "one_minus_cosine" or value > 0)
    ]
    if not rows:
        return None
    # A group without values keeps its colour, so that the others have theirs in every chart.
    there = {name for name, _, _ in rows}
    rows += [(name, result.steps[0], None) for name in names if name not in there]
    rows.sort(key=lambda row: names.index(row[0]))
    frame = pl.DataFrame(rows, schema=["group", "step", "value"], orient="row")
    chart = lines(
        frame,
        x=("step", "step"),
        y=("value", label),
        colour=("group", "group"),
        title=heading,
        points=len(result.steps) < 40,
        log_y=what == "one_minus_cosine",
    )
    return Section(heading=heading, chart=chart, alternative=alternative)


def _growth(result: Trajectory, names: list[str], heading: str, alternative: str) -> Section | None:
    """Norms, and from where warm-up ends the law that fits each best."""
    steps = np.array(result.steps, dtype=np.float64)
    rows: list[tuple[str, int, float, float | None]] = []
    for name in names:
        law, norm = result.laws[name], result.groups[name].norm
        through = np.full(len(steps), np.nan)
        if law.fit is not None:  # a logarithm has no value where warm-up begins
            used = steps >= law.first_step
            through[used] = told(law.fit, steps[used])
        rows += [
            (name, int(step), float(value), float(at) if at > 0 else None)
            for step, value, at in zip(steps, norm, through, strict=True)
            if np.isfinite(value)
        ]
    if not rows:
        return None
    frame = pl.DataFrame(rows, schema=["group", "step", "norm", "law"], orient="row")
    chart = fitted(
        frame,
        x=("step", "step"),
        y=("norm", "‖θ‖"),
        law=("law", "the law that fits best"),
        colour=("group", "group"),
        title=heading,
    )
    return Section(heading=heading, chart=chart, alternative=alternative)


def _laws(result: Trajectory) -> Section:
    rows = [
        [name, law, f"{each.r2:.6f}", f"{each_growth.criteria[law]:.1f}", _shape(law, each)]
        for name in result.headline
        for each_growth in [result.laws[name]]
        for law, each in each_growth.fits.items()
    ]
    text = " ".join(f"{name}: {result.laws[name].sentence}." for name in result.headline)
    columns = ("group", "law", "r²", "AICc, correlated residuals", "exponent")
    return Section(heading="Laws of growth", text=text, columns=columns, rows=rows)


def _by_layer(result: Trajectory, layers: list[str]) -> Section | None:
    """What fits each layer's growth, and how well √t does."""
    rows = [
        [name, each.form or "", f"{each.fit.r2:.6f}", f"{each.fits['sqrt'].r2:.6f}", power]
        for name in layers
        for each in [result.laws[name]]
        if each.fit is not None
        for power in [_shape("power", each.fits.get("power"))]
    ]
    if not rows:
        return None
    columns = ("layer", "law", "its r²", "r² of √t", "free exponent")
    return Section(heading="Laws by layer", columns=columns, rows=rows)


def _shape(law: str, fit: object) -> str:
    interval = getattr(fit, "interval", None)
    if law != "power" or interval is None:
        return ""
    return f"{getattr(fit, 'shape', 0.0):.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def _shares(result: Trajectory) -> Section | None:
    rows = [
        [name, str(lag), f"{share:.1%}", f"{each.misaligned:.2%}", f"{each.aligned:.2%}"]
        for name in result.headline
        if name in result.dynamics
        for each in [result.dynamics[name]]
        for lag, share in each.shares.items()
        if np.isfinite(share)
    ]
    if not rows:
        return None
    text = " ".join(
        f"{name}: {result.dynamics[name].sentence}."
        for name in result.headline
        if name in result.dynamics
    )
    columns = (
        "group",
        "spacing in checkpoints",
        "alignment's share of growth",
        "misaligned account off by",
        "aligned account off by",
    )
    return Section(heading="Aligned or misaligned", text=text, columns=columns, rows=rows)


def _path(result: Trajectory) -> list[Section]:
    if "total" not in result.pairs or len(result.steps) < 3:
        return []
    frame = result.path("total")
    chart = lines(
        frame,
        x=("first", "first principal component"),
        y=("second", "second principal component"),
        title="The path",
        points=True,
        order="step",
    )
    dimension = result.pairs["total"].effective_dimension
    start, end = ((f"{at[0]:.3g}", f"{at[1]:.3g}") for at in (frame.row(0)[1:], frame.row(-1)[1:]))
    text = (
        f"From step {result.steps[0]:,} at ({', '.join(start)}) to step {result.steps[-1]:,} at "
        f"({', '.join(end)}). The path spreads over {dimension:.2f} principal components."
    )
    alternative = "The path of the parameters on its first two principal components"
    return [Section(heading="Path", text=text, chart=chart, alternative=alternative)]


def _findings(result: Trajectory) -> Section:
    rows = [[each.checkpoint, each.kind, each.detail] for each in result.findings]
    said = [] if rows else ["Nothing is wrong with the files"]
    text = " ".join(f"{each}." for each in [*said, *result.notes])
    columns = ("checkpoint", "kind", "what is wrong")
    return Section(heading="Findings", text=text, columns=columns, rows=rows)
