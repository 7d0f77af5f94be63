"""Quantities over steps: gathered into few points first, so that a million records are one line."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.charts import DASHES
from orderone.report.columns import Columns
from orderone.report.theme import GREY, HEIGHT, WIDTH, configuration

POINTS = 200
"""Of one line at most; a panel has about twice as many pixels."""


def gathered(frame: pl.DataFrame, by: list[str], *, log: bool = False) -> pl.DataFrame:
    """Of each series at most ``POINTS`` points over the steps.

    A series that has more is cut into spans of steps: ``value`` is their mean (of logarithms, where
    the axis is logarithmic), ``lowest`` and ``highest`` their ends, ``records`` how many they are.
    """
    if log:
        frame = frame.filter(pl.col("value") > 0)
    step, value = pl.col("step"), pl.col("value")
    first, last = step.min().over(by), step.max().over(by)
    place = ((step - first) * POINTS // (last - first + 1)).alias("span")
    many = pl.len().over(by) > POINTS
    spans = frame.with_columns(pl.when(many).then(place).otherwise(step).alias("span"))
    mean = value.log().mean().exp() if log else value.mean()
    return (
        spans.group_by([*by, "span"])
        .agg(
            step=((step.min() + step.max()) // 2),
            value=mean,
            lowest=value.min(),
            highest=value.max(),
            records=pl.len(),
        )
        .sort([*by, "step"])
        .drop("span")
    )


def courses(
    points: pl.DataFrame,
    *,
    label: str,
    colour: tuple[str, str],
    title: str,
    subtitle: str = "",
    dash: tuple[str, str] | None = None,
    log: bool = False,
    marks: pl.DataFrame | None = None,
) -> alt.LayerChart:
    """Lines of ``gathered`` points over steps, each in the band between lowest and highest.

    ``colour`` and ``dash`` are (column, label); ``marks`` has a row each event: step and what.
    """
    bands = bool((points["records"] > 1).any())
    columns = Columns(points if bands else points.drop("lowest", "highest", "records"))
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    up = alt.Y(type="quantitative", title=label, scale=scale)
    along = alt.X(columns["step"], type="quantitative", title="step", axis=alt.Axis(format="~s"))
    order = points[colour[0]].unique(maintain_order=True).to_list()
    drawn = alt.Chart(columns.frame).encode(x=along)
    if len(order) > 1:
        drawn = drawn.encode(
            color=alt.Color(columns[colour[0]], type="nominal", title=colour[1] or None, sort=order)
        )
    if dash is not None:
        drawn = drawn.encode(
            strokeDash=alt.StrokeDash(
                columns[dash[0]],
                type="nominal",
                title=dash[1],
                sort=points[dash[0]].unique(maintain_order=True).to_list(),
                legend=alt.Legend(symbolType="stroke"),
            )
        )
    lengths = points.group_by([colour[0], *([] if dash is None else [dash[0]])]).len()["len"]
    dotted = bool((lengths < 40).all() or (lengths == 1).any())
    line = drawn.mark_line(strokeWidth=2, point=dotted).encode(
        y=up.field(columns["value"]), tooltip=columns.tooltip()
    )
    layers: list[alt.Chart] = [line]
    if bands:
        area = drawn.mark_area(opacity=0.18)
        layers.insert(0, area.encode(y=up.field(columns["lowest"]), y2=alt.Y2(columns["highest"])))
    if marks is not None and not marks.is_empty():
        layers.insert(0, _marks(marks))
    return (
        alt.LayerChart(layer=layers)
        .properties(title=alt.TitleParams(title, subtitle=subtitle), width=WIDTH, height=HEIGHT)
        .configure(**configuration())
    )


def _marks(marks: pl.DataFrame) -> alt.Chart:
    columns = Columns(marks)
    ruled = alt.Chart(columns.frame).mark_rule(strokeDash=DASHES, color=GREY, strokeWidth=1.5)
    return ruled.encode(x=alt.X(columns["step"], type="quantitative"), tooltip=columns.tooltip())
