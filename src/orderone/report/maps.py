"""Numbers on a grid, and how often each occurs: layer × head maps and histograms."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.columns import Columns
from orderone.report.theme import BLUE, WIDTH, configuration


def grid(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    value: tuple[str, str],
    title: str,
    subtitle: str = "",
) -> alt.Chart:
    """A square each (x, y), darker for larger values; rows and columns in the frame's order."""
    columns = frame[x[0]].unique(maintain_order=True).to_list()
    rows = frame[y[0]].unique(maintain_order=True).to_list()
    plain = Columns(frame)
    return (
        alt.Chart(plain.frame, title=alt.TitleParams(title, subtitle=subtitle))
        .mark_rect()
        .encode(
            x=alt.X(plain[x[0]], type="ordinal", title=x[1], sort=columns),
            y=alt.Y(plain[y[0]], type="ordinal", title=y[1], sort=rows),
            color=alt.Color(
                plain[value[0]],
                type="quantitative",
                title=value[1],
                scale=alt.Scale(scheme="viridis"),
            ),
            tooltip=plain.tooltip(),
        )
        .properties(width=max(200, 24 * len(columns)), height=max(80, 20 * len(rows)))
        .configure(**configuration())
    )


def histogram(
    frame: pl.DataFrame,
    *,
    value: tuple[str, str],
    count: str,
    title: str,
    subtitle: str = "",
    colour: tuple[str, str] | None = None,
    bins: int = 30,
) -> alt.Chart:
    """How many rows have each value; stacked, a colour each value of another column."""
    plain = Columns(frame.select(value[0], *([colour[0]] if colour else [])))
    binned = alt.Bin(maxbins=bins)
    # Ends of bins lie close together: labels that would overlap are left out.
    axis = alt.Axis(format="~g", labelOverlap="greedy", labelSeparation=4, labelFlush=False)
    bars = alt.X(plain[value[0]], type="quantitative", bin=binned, title=value[1], axis=axis)
    whole = alt.Axis(tickMinStep=1, format="d")
    counted = alt.Y(aggregate="count", type="quantitative", title=count, axis=whole)
    told = [
        alt.Tooltip(
            field=plain[value[0]], type="quantitative", bin=alt.Bin(maxbins=bins), title=value[1]
        ),
        alt.Tooltip(aggregate="count", type="quantitative", title=count),
    ]
    chart = alt.Chart(plain.frame, title=alt.TitleParams(title, subtitle=subtitle)).mark_bar(
        color=BLUE
    )
    if colour is not None:
        field = plain[colour[0]]
        chart = chart.encode(color=alt.Color(field, type="nominal", title=colour[1], sort=None))
        told.insert(0, alt.Tooltip(field=field, type="nominal", title=colour[1]))
    return (
        chart.encode(x=bars, y=counted, tooltip=told)
        .properties(width=WIDTH, height=220)
        .configure(**configuration())
    )
