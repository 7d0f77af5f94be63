"""Quantities of one moment: over layers or other places, and along a number such as a width."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.charts import Picture, name_angle
from orderone.report.columns import Columns
from orderone.report.theme import HEIGHT, WIDTH, configuration


def across(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    label: str,
    title: str,
    subtitle: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Picture:
    """Points of ``value`` over column x, joined, a colour each ``series``.

    A text column x makes a place for each of its values, in the frame's order.
    """
    columns = Columns(frame)
    if frame.schema[x[0]].is_numeric():
        scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False)
        along = alt.X(columns[x[0]], type="quantitative", title=x[1], scale=scale)
    else:
        axis = alt.Axis(labelAngle=name_angle(frame[x[0]]), labelLimit=220)
        along = alt.X(columns[x[0]], type="ordinal", title=x[1], sort=None, axis=axis)
    scale = alt.Scale(type="log") if log_y else alt.Scale(zero=False)
    order = frame["series"].unique(maintain_order=True).to_list()
    colour = alt.Color(columns["series"], type="nominal", title=None, sort=order)
    return (
        alt.Chart(columns.frame, title=alt.TitleParams(title, subtitle=subtitle))
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=along,
            y=alt.Y(columns["value"], type="quantitative", title=label, scale=scale),
            color=colour if len(order) > 1 else alt.Undefined,
            tooltip=columns.tooltip(),
        )
        .properties(width=WIDTH, height=HEIGHT)
        .configure(**configuration())
    )
