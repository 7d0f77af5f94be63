"""Numbers on a grid, and how often each occurs: layer × head maps and histograms."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.theme import BLUE, configuration


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
    return (
        alt.Chart(frame, title=alt.TitleParams(title, subtitle=subtitle))
        .mark_rect()
        .encode(
            x=alt.X(x[0], type="ordinal", title=x[1], sort=columns),
            y=alt.Y(y[0], type="ordinal", title=y[1], sort=rows),
            color=alt.Color(
                value[0],
                type="quantitative",
                title=value[1],
                scale=alt.Scale(scheme="viridis"),
            ),
            tooltip=[alt.Tooltip(name) for name in frame.columns],
        )
        .properties(width=max(200, 24 * len(columns)), height=max(80, 20 * len(rows)))
        .configure(**configuration())
    )


def histogram(
    frame: pl.DataFrame, *, value: tuple[str, str], count: str, title: str, bins: int = 30
) -> alt.Chart:
    """How many rows have each value."""
    return (
        alt.Chart(frame, title=title)
        .mark_bar(color=BLUE)
        .encode(
            x=alt.X(value[0], type="quantitative", bin=alt.Bin(maxbins=bins), title=value[1]),
            y=alt.Y("count()", title=count),
        )
        .properties(width=560, height=220)
        .configure(**configuration())
    )
