"""Charts from frames of records: the frame has one row a point."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import polars as pl

from orderone.core.errors import ConfigError
from orderone.report.theme import configuration

FORMATS = (".svg", ".png", ".pdf", ".json")


def lines(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    colour: tuple[str, str] | None = None,
    title: str,
    subtitle: str = "",
    log_x: bool = False,
    log_y: bool = False,
    points: bool = False,
) -> alt.Chart:
    """Lines of column y over column x, a colour each value of a third.

    ``x``, ``y`` and ``colour`` are (column, label); the label states the unit.
    """
    colours = alt.Undefined if colour is None else _colour(*colour)
    return (
        alt.Chart(frame, title=alt.TitleParams(title, subtitle=subtitle))
        .mark_line(point=points, strokeWidth=2)
        .encode(
            x=alt.X(x[0], type="quantitative", title=x[1], scale=_scale(log_x)),
            y=alt.Y(y[0], type="quantitative", title=y[1], scale=_scale(log_y)),
            color=colours,
            tooltip=[alt.Tooltip(name) for name in frame.columns],
        )
        .properties(width=560, height=300)
        .configure(**configuration())
    )


def facets(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    detail: str,
    facet: str,
    title: str,
    subtitle: str = "",
    columns: int = 3,
) -> alt.FacetChart:
    """Power laws side by side: on log–log axes a mean line, and a band of one standard deviation.

    A panel each value of ``facet``, a line each value of ``detail``, of which there may be many:
    they share a colour and are told apart by their tooltips. What is not positive has no logarithm
    and is left out.
    """
    positive = frame.filter(pl.col(y[0]).is_finite() & (pl.col(y[0]) > 0))
    logs = positive.with_columns(log=pl.col(y[0]).log())
    points = (
        logs.group_by(facet, detail, x[0], maintain_order=True)
        .agg(mean=pl.col("log").mean(), spread=pl.col("log").std().fill_null(0.0))
        .with_columns(
            value=pl.col("mean").exp(),
            low=(pl.col("mean") - pl.col("spread")).exp(),
            high=(pl.col("mean") + pl.col("spread")).exp(),
        )
        .select(facet, detail, x[0], "value", "low", "high")
    )
    base = alt.Chart(points).encode(
        x=alt.X(x[0], type="quantitative", title=x[1], scale=alt.Scale(type="log", nice=False)),
        detail=alt.Detail(detail, type="nominal"),
        tooltip=[alt.Tooltip(name) for name in points.columns],
    )
    band = base.mark_area(opacity=0.12).encode(
        y=alt.Y("low", type="quantitative", title=y[1], scale=alt.Scale(type="log")),
        y2="high",
    )
    line = base.mark_line(strokeWidth=1.5, point=True).encode(
        y=alt.Y("value", type="quantitative", title=y[1], scale=alt.Scale(type="log"))
    )
    return (
        alt.layer(band, line)
        .properties(width=220, height=180)
        .facet(alt.Facet(facet, type="nominal", title=None, sort=None), columns=columns)
        .resolve_scale(y="independent")
        .properties(title=alt.TitleParams(title, subtitle=subtitle))
        .configure(**configuration())
    )


def _colour(column: str, label: str) -> alt.Color:
    return alt.Color(column, type="nominal", title=label, sort=None)


def _scale(log: bool) -> alt.Scale:
    return alt.Scale(type="log") if log else alt.Scale(zero=False)


Picture = alt.Chart | alt.FacetChart | alt.LayerChart


def svg(chart: Picture) -> str:
    """The chart as SVG text, drawn without a browser."""
    import vl_convert

    return vl_convert.vegalite_to_svg(chart.to_json())


def save_chart(chart: Picture, path: Path) -> None:
    """Write the chart in the format that the name's ending says."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"picture format '{path.suffix}' of {path.name}",
            expected=f"one of {', '.join(FORMATS)}",
            do="rename the file",
        )
    chart.save(str(path), scale_factor=2.0 if path.suffix == ".png" else 1.0)
