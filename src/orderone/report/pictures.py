"""Which pictures a quantity gets, of one run or of several over one another."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from orderone.report.charts import heatmaps
from orderone.report.courses import courses, gathered
from orderone.report.maps import grid
from orderone.report.page import Section
from orderone.report.places import across
from orderone.report.quantities import MOST, REPEATS, Quantity, spread

PANELS = 12
"""Matrices side by side."""
MARKS = 50
"""Events that a picture marks; the table has all."""
CELLS = 5_000
"""Squares or points of a picture of one moment."""


def pictures(quantity: Quantity, runs: Sequence[str], marks: pl.DataFrame) -> list[Section]:
    """The sections that show one quantity; ``marks`` are the events of all runs."""
    if quantity.frame.is_empty() or quantity.is_level:
        return []
    if len(runs) > MOST:
        runs = runs[:MOST]
        quantity = _of_runs(quantity, runs)
    shape = quantity.shape
    if shape == "course":
        return _courses(quantity, runs, marks)
    if shape == "matrices":
        return [s for run in _present(quantity, runs) for s in _matrices(quantity, run, runs)]
    if shape == "grid":
        return [s for run in _present(quantity, runs) for s in _grid(quantity, run, runs)]
    return _across(quantity, runs) if shape in ("across", "places") else []


def _courses(quantity: Quantity, runs: Sequence[str], marks: pl.DataFrame) -> list[Section]:
    """One picture; of records ``by`` total, layer and role, one of each, the finer ones folded."""
    by = quantity.column("by")
    if by is None:
        return [_course(quantity, quantity.frame, runs, marks)]
    layered = pl.col(by) == "layer"
    parts = [("", quantity.frame.filter(~layered)), (" by layer", quantity.frame.filter(layered))]
    return [_course(quantity, frame, runs, marks, more=more) for more, frame in parts if len(frame)]


def _course(
    quantity: Quantity,
    frame: pl.DataFrame,
    runs: Sequence[str],
    marks: pl.DataFrame,
    *,
    more: str = "",
) -> Section:
    known = quantity.known
    present = frame["run"].unique()
    several = len(present) > 1
    named = _replaced(quantity, frame).series(runs=False)
    names = named["series"].unique(maintain_order=True).to_list()
    drawn = spread(names, 3 if several else MOST)
    by = ["run", "series"] if several else ["series"]
    points = gathered(named.filter(pl.col("series").is_in(drawn)), by, log=known.log)
    points = points.sort(pl.col("series").replace_strict({n: i for i, n in enumerate(drawn)}))
    said = [f"only {present[0]}"] if len(runs) > 1 and not several else []
    said += [f"{len(drawn)} of {len(names)} groups"] if len(drawn) < len(names) else []
    if len(points) and int(points["records"].max() or 1) > 1:  # pyright: ignore
        said.append("lines: means of neighbouring steps; bands: lowest to highest")
    if known.log and len(frame.filter(pl.col("value") <= 0)):
        said.append("values of zero or less have no place on this axis")
    what = known.heading + more
    own = marks.filter(pl.col("run").is_in(list(runs)))[:MARKS]
    chart = courses(
        points,
        label=known.label,
        colour=("run", "run") if several else ("series", ""),
        dash=("series", "line") if several and len(drawn) > 1 else None,
        log=known.log,
        title=what,
        subtitle="; ".join(said),
        marks=own if quantity.name.startswith(("loss", "gradient")) else None,
    )
    words = f"{what} over steps, a line each {'run' if several else 'group'}"
    return Section(heading=what, chart=chart, alternative=words, folded=bool(more))


def _across(quantity: Quantity, runs: Sequence[str]) -> list[Section]:
    """Over a number such as a width or over places such as layers, repetitions averaged."""
    axis = quantity.axis
    numeric = axis is not None
    column, key = axis or _places(quantity)
    frame = quantity.frame.filter(pl.col("step") == quantity.frame["step"].max())
    at = f"at step {frame['step'][0]:,}" if quantity.frame["step"].n_unique() > 1 else ""
    named = _replaced(quantity, frame).series(without=(column,), runs=len(runs) > 1)
    if numeric:
        named = named.with_columns(pl.col(column).cast(pl.Float64))
    known = quantity.known
    names = spread(named["series"].unique(maintain_order=True).to_list())
    log = numeric and key in ("c", "lr", "width", "n", "C")
    positive = bool((named["value"] > 0).all())
    mean = pl.col("value").log().mean().exp() if known.log and positive else pl.col("value").mean()
    points = (
        named.filter(pl.col("series").is_in(names))
        .group_by(column, "series", maintain_order=True)
        .agg(value=mean)
        .rename({column: key if key not in ("series", "value") else f"{key} "})
        .head(CELLS)
    )
    if numeric:
        points = points.sort(points.columns[0])
    many = named["series"].n_unique()
    said = [each for each in (at,) if each]
    said += [f"{len(names)} of {many} lines"] if len(names) < many else []
    said += ["means over seeds"] if quantity.column("seed") is not None else []
    chart = across(
        points,
        x=(points.columns[0], key),
        label=known.label,
        title=known.heading,
        subtitle="; ".join(said),
        log_x=log and bool((points[points.columns[0]] > 0).all()),
        log_y=known.log and positive,
    )
    words = f"{known.heading} over {key}"
    return [Section(heading=known.heading, chart=chart, alternative=words)]


def _places(quantity: Quantity) -> tuple[str, str]:
    """The label with the most values: where the others differ, a colour tells them."""
    named = [(c, key) for c, key in quantity.keys.items() if key not in REPEATS]
    return max(named, key=lambda each: (each[1] == "layer", quantity.frame[each[0]].n_unique()))


def _grid(quantity: Quantity, run: str, runs: Sequence[str]) -> list[Section]:
    layer, head = quantity.column("layer"), quantity.column("head")
    frame = quantity.frame.filter(pl.col("run") == run)
    squares = frame.select(
        layer=pl.col(layer or ""), head=pl.col(head or ""), value=pl.col("value")
    ).head(CELLS)
    cut = f"the first {CELLS:,} of {len(frame):,}" if len(frame) > CELLS else ""
    what = _headed(quantity.known.heading, run, runs)
    chart = grid(
        squares,
        x=("head", "head"),
        y=("layer", "layer"),
        value=("value", quantity.known.label),
        title=what,
        subtitle=cut,
    )
    return [Section(heading=what, chart=chart, alternative=f"{what} by layer and head")]


def _matrices(quantity: Quantity, run: str, runs: Sequence[str]) -> list[Section]:
    columns = {key: quantity.column(key) for key in ("row", "column")}
    frame = quantity.frame.filter(pl.col("run") == run)
    others = [c for c, key in quantity.keys.items() if key not in ("row", "column")]
    text = pl.concat_str([pl.col(c).fill_null("") for c in others], separator=" · ")
    cells = frame.select(
        row=pl.col(columns["row"] or ""),
        column=pl.col(columns["column"] or ""),
        value=pl.col("value"),
        block=text if others else pl.format("step {}", pl.col("step")),
    )
    blocks = cells["block"].unique(maintain_order=True).to_list()
    kept = spread(blocks, PANELS)
    said = f"{len(kept)} of {len(blocks)}" if len(kept) < len(blocks) else ""
    what = _headed(quantity.known.heading, run, runs)
    chart = heatmaps(
        cells.filter(pl.col("block").is_in(kept)),
        row="row",
        column="column",
        value=("value", quantity.known.label),
        facet="block",
        title=what,
        subtitle=said,
    )
    return [Section(heading=what, chart=chart, alternative=f"{what}, a matrix each block")]


def _headed(heading: str, run: str, runs: Sequence[str]) -> str:
    return f"{heading}: {run}" if len(runs) > 1 else heading


def _present(quantity: Quantity, runs: Sequence[str]) -> list[str]:
    there = set(quantity.frame["run"].unique())
    return [run for run in runs if run in there]


def _of_runs(quantity: Quantity, runs: Sequence[str]) -> Quantity:
    return _replaced(quantity, quantity.frame.filter(pl.col("run").is_in(list(runs))))


def _replaced(quantity: Quantity, frame: pl.DataFrame) -> Quantity:
    return Quantity(name=quantity.name, frame=frame, keys=quantity.keys, lost=quantity.lost)
