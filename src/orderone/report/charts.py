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


def _colour(column: str, label: str) -> alt.Color:
    return alt.Color(column, type="nominal", title=label, sort=None)


def _scale(log: bool) -> alt.Scale:
    return alt.Scale(type="log") if log else alt.Scale(zero=False)


def svg(chart: alt.Chart) -> str:
    """The chart as SVG text, drawn without a browser."""
    import vl_convert

    return vl_convert.vegalite_to_svg(chart.to_json())


def save_chart(chart: alt.Chart, path: Path) -> None:
    """Write the chart in the format that the name's ending says."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"picture format '{path.suffix}' of {path.name}",
            expected=f"one of {', '.join(FORMATS)}",
            do="rename the file",
        )
    chart.save(str(path), scale_factor=2.0 if path.suffix == ".png" else 1.0)
