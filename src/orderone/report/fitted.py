"""What was measured, and the law through it."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.charts import DASHES
from orderone.report.columns import Columns
from orderone.report.theme import HEIGHT, WIDTH, configuration

INK = "#000"
"""As Vega's text and axes, so that a dark page turns it too."""


def fitted(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    law: tuple[str, str],
    colour: tuple[str, str],
    title: str,
) -> alt.LayerChart:
    """Broad lines of column y over column x, a colour each value of a third, and dashed laws.

    ``x``, ``y``, ``law`` and ``colour`` are (column, label); a law that is null is not drawn.
    """
    columns = Columns(frame)
    drawn = alt.Chart(columns.frame).encode(
        x=alt.X(columns[x[0]], type="quantitative", title=x[1], scale=alt.Scale(zero=False))
    )
    up = alt.Y(type="quantitative", title=y[1], scale=alt.Scale(zero=False))
    measured = drawn.mark_line(strokeWidth=4).encode(
        y=up.field(columns[y[0]]),
        color=alt.Color(columns[colour[0]], type="nominal", title=colour[1], sort=None),
        tooltip=columns.tooltip(),
    )
    through = drawn.mark_line(strokeDash=DASHES, strokeWidth=1.2, color=INK).encode(
        y=up.field(columns[law[0]]), detail=alt.Detail(columns[colour[0]], type="nominal")
    )
    titled = alt.TitleParams(title, subtitle=f"dashed: {law[1]}")
    layers = alt.LayerChart(layer=[measured, through])
    drawing = layers.properties(title=titled, width=WIDTH, height=HEIGHT)
    return drawing.configure(**configuration())
