"""Charts from frames of records: the frame has one row a point."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import altair as alt
import polars as pl

from orderone.core.errors import ConfigError
from orderone.core.files import write_atomically
from orderone.report.columns import Columns
from orderone.report.theme import GREY, HEIGHT, NARROW, PALETTE, WIDTH, configuration
from orderone.report.vega import Picture as Picture
from orderone.report.vega import specification, svg_of

FORMATS = (".svg", ".png", ".pdf", ".json")
ROOM = 1.5
"""Factor that a logarithmic panel shows above its highest and below its lowest point."""
DASHES = [6, 4]
LOW, HIGH = "lower end", "upper end"


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
    order: str | None = None,
) -> alt.Chart:
    """Lines of column y over column x, a colour each value of a third.

    ``x``, ``y`` and ``colour`` are (column, label); the label states the unit. Points are joined
    in the order of x, or of the column ``order``.
    """
    columns = Columns(frame)
    inner = alt.Undefined if order is None else alt.Order(columns[order], type="quantitative")
    return (
        alt.Chart(columns.frame, title=alt.TitleParams(title, subtitle=subtitle))
        .mark_line(point=points, strokeWidth=2)
        .encode(
            x=alt.X(columns[x[0]], type="quantitative", title=x[1], scale=_scale(log_x)),
            y=alt.Y(columns[y[0]], type="quantitative", title=y[1], scale=_scale(log_y)),
            color=alt.Undefined if colour is None else _colour(columns[colour[0]], colour[1]),
            order=inner,
            tooltip=columns.tooltip(),
        )
        .properties(width=WIDTH, height=HEIGHT)
        .configure(**configuration())
    )


def estimates(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    error: str,
    colour: tuple[str, str] | None = None,
    reference: tuple[float | str, str] | None = None,
    title: str,
    subtitle: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> alt.LayerChart:
    """Points of column y over column x, each with a bar of one standard error, column ``error``.

    A text column x makes a place for each of its values, in the frame's order. ``reference`` is
    (what, label), drawn dashed: a number is a level; a name is a column, joined by a line in x,
    one each colour. A missing error has no bar, and bars are spoken of where there are any.
    """
    columns = Columns(_with_ends(frame, y[0], error, log=log_y))
    if frame.schema[x[0]].is_numeric():
        along = alt.X(columns[x[0]], type="quantitative", title=x[1], scale=_scale(log_x))
    else:
        axis = alt.Axis(labelAngle=name_angle(frame[x[0]]), labelLimit=220, labelOverlap=False)
        along = alt.X(columns[x[0]], type="ordinal", title=x[1], sort=None, axis=axis)
    up = alt.Y(type="quantitative", title=y[1], scale=_scale(log_y))
    drawn = alt.Chart(columns.frame).encode(x=along)
    if colour is not None:
        drawn = drawn.encode(color=_colour(columns[colour[0]], colour[1]))
    bars = drawn.mark_rule(strokeWidth=1.5).encode(y=up.field(columns[LOW]), y2=columns[HIGH])
    points = drawn.mark_point(filled=True, size=50, opacity=1).encode(
        y=up.field(columns[y[0]]), tooltip=columns.tooltip(*frame.columns)
    )
    layers: list[alt.Chart] = [points]
    said = [subtitle] if subtitle else []
    if reference is not None:
        what, label = reference
        layers.insert(0, _reference(drawn, up, columns[what] if isinstance(what, str) else what))
        said.append(f"dashed: {label}")
    if frame[error].drop_nulls().len():
        layers.insert(-1, bars)
        said.append("bars: one standard error")
    titled = alt.TitleParams(title, subtitle="; ".join(said))
    drawing = alt.LayerChart(layer=layers).properties(title=titled, width=WIDTH, height=HEIGHT)
    return drawing.configure(**configuration())


def facets(
    frame: pl.DataFrame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    detail: str,
    facet: str,
    colour: tuple[str, str],
    colours: Mapping[str, str],
    title: str,
    subtitle: str = "",
    columns: int = 2,
) -> alt.FacetChart:
    """Power laws side by side: on log–log axes a mean line, and a band of one standard deviation.

    A panel each value of ``facet``, in the frame's order; a line each value of ``detail``, of which
    there may be many: tooltips tell them apart. ``colours`` has one for each value of ``colour``.
    What is not positive has no logarithm and is left out.
    """
    points = _geometric_means(frame, [facet, detail, colour[0], x[0]], y[0]).with_columns(
        floor=pl.col("low").min().over(facet) / ROOM,
        ceiling=pl.col("high").max().over(facet) * ROOM,
    )
    order = points[facet].unique(maintain_order=True).to_list()
    ticks = alt.Axis(values=sorted(frame[x[0]].unique()), format="d")
    plain = Columns(points)
    base = alt.Chart(plain.frame).encode(
        x=alt.X(
            plain[x[0]],
            type="quantitative",
            title=x[1],
            axis=ticks,
            scale=alt.Scale(type="log", nice=False),
        ),
        detail=alt.Detail(plain[detail], type="nominal"),
        color=_colour(plain[colour[0]], colour[1]).scale(
            domain=list(colours), range=list(colours.values())
        ),
        tooltip=plain.tooltip(facet, detail, colour[0], x[0], "value"),
    )
    scale = alt.Scale(type="log", nice=False, padding=8)
    height = alt.Y("low", type="quantitative", title=y[1], scale=scale)
    band = base.mark_area(opacity=0.12).encode(y=height, y2="high")
    line = base.mark_line(strokeWidth=1.5, point=True).encode(
        y=alt.Y("value", type="quantitative", title=y[1], scale=scale)
    )
    # Unseen points: without them an axis would blow up a change of a few per cent to a mountain.
    room = [
        base.mark_point(opacity=0).encode(y=alt.Y(name, type="quantitative", scale=scale))
        for name in ("floor", "ceiling")
    ]
    return (
        alt.layer(band, line, *room)
        .properties(width=300, height=190)
        .facet(
            alt.Facet(plain[facet], type="nominal", sort=order, header=alt.Header(title=None)),
            columns=columns,
        )
        .resolve_scale(y="independent")
        .resolve_axis(x="independent")
        .properties(title=alt.TitleParams(title, subtitle=subtitle))
        .configure(**configuration())
    )


def heatmaps(
    frame: pl.DataFrame,
    *,
    row: str,
    column: str,
    value: tuple[str, str],
    facet: str,
    title: str,
    subtitle: str = "",
    columns: int = 4,
) -> alt.FacetChart:
    """Matrices side by side, one for each value of ``facet`` in the frame's order, on one scale.

    Blue is positive, orange negative, white zero; equal sizes are equally dark.
    """
    order = frame[facet].unique(maintain_order=True).to_list()
    axis = alt.Axis(labels=frame[row].n_unique() <= 16, grid=False)
    sizes = (abs(x) for x in frame[value[0]].to_list() if x is not None and isfinite(x))
    top = max(sizes, default=0.0) or 1.0
    scale = alt.Scale(
        domain=[-top, 0.0, top], range=[PALETTE[1], "white", PALETTE[0]], interpolate="rgb"
    )
    plain = Columns(frame)
    return (
        alt.Chart(plain.frame)
        .mark_rect()
        .encode(
            x=alt.X(plain[column], type="ordinal", title=None, axis=axis),
            y=alt.Y(plain[row], type="ordinal", title=None, axis=axis),
            color=alt.Color(plain[value[0]], type="quantitative", title=value[1], scale=scale),
            tooltip=plain.tooltip(),
        )
        .properties(width=170, height=170)
        .facet(
            alt.Facet(plain[facet], type="nominal", sort=order, header=alt.Header(title=None)),
            columns=columns,
        )
        # A pooled head has fewer rows than the blocks below it.
        .resolve_scale(x="independent", y="independent")
        .properties(title=alt.TitleParams(title, subtitle=subtitle))
        .configure(**configuration())
    )


def _geometric_means(frame: pl.DataFrame, by: list[str], value: str) -> pl.DataFrame:
    """Mean of the logarithms of ``value`` by group as ``value``, with ``low`` and ``high``."""
    positive = frame.filter(pl.col(value).is_finite() & (pl.col(value) > 0))
    log = pl.col(value).log()
    means = positive.group_by(by, maintain_order=True).agg(
        mean=log.mean(), spread=log.std().fill_null(0.0)
    )
    return means.select(
        *by,
        value=pl.col("mean").exp(),
        low=(pl.col("mean") - pl.col("spread")).exp(),
        high=(pl.col("mean") + pl.col("spread")).exp(),
    )


def _with_ends(frame: pl.DataFrame, value: str, error: str, *, log: bool) -> pl.DataFrame:
    """The frame with both ends of each error bar; on a logarithmic axis they stay above zero."""
    reach = pl.col(error).fill_nan(None)
    ends = frame.with_columns(
        (pl.col(value) - reach).alias(LOW), (pl.col(value) + reach).alias(HIGH)
    )
    if not log:
        return ends
    positive = ends.filter(pl.col(value) > 0)
    least = positive.select(
        pl.min_horizontal(pl.col(value).min(), pl.col(LOW).filter(pl.col(LOW) > 0).min())
    ).item()
    floor = pl.lit(least, dtype=pl.Float64) / ROOM
    cut = pl.when(pl.col(LOW) > 0).then(pl.col(LOW)).when(pl.col(LOW) <= 0).then(floor)
    return positive.with_columns(cut.alias(LOW))


def _reference(drawn: alt.Chart, up: alt.Y, what: float | str) -> alt.Chart:
    """A dashed line: through a column, or level at a number."""
    if isinstance(what, str):
        return drawn.mark_line(strokeDash=DASHES, strokeWidth=1.5).encode(y=up.field(what))
    # A frame of one row: a rule drawn from every row would darken its dashes.
    level = alt.Chart(pl.DataFrame({"level": [float(what)]}))
    ruled = level.mark_rule(strokeDash=DASHES, strokeWidth=1.5, color=GREY)
    return ruled.encode(y=up.field("level"))


def name_angle(names: pl.Series) -> int:
    """Degrees that text under an axis is turned by: none where a phone has all of it in a row."""
    texts = [str(name) for name in names.unique().to_list()]
    letters = max(map(len, texts), default=0)
    return 0 if 8 * len(texts) * (letters + 1) <= NARROW else -40


def _colour(column: str, label: str) -> alt.Color:
    return alt.Color(column, type="nominal", title=label, sort=None)


def _scale(log: bool) -> alt.Scale:
    return alt.Scale(type="log") if log else alt.Scale(zero=False)


def svg(chart: Picture) -> str:
    """The chart as SVG text, drawn without a browser."""
    return svg_of(specification(chart))


def save_chart(chart: Picture, path: Path) -> None:
    """Write the chart in the format that the name's ending says."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"picture format '{path.suffix}' of {path.name}",
            expected=f"one of {', '.join(FORMATS)}",
            do="rename the file",
        )
    import vl_convert

    text = json.dumps(specification(chart))
    content = {
        ".svg": lambda: vl_convert.vegalite_to_svg(text).encode(),
        ".png": lambda: vl_convert.vegalite_to_png(text, scale=2.0),
        ".pdf": lambda: vl_convert.vegalite_to_pdf(text),
        ".json": text.encode,
    }[path.suffix]()
    write_atomically(path, content)
