"""What an agreement is drawn from, and its pictures: entries side by side, errors by width."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from torch import Tensor

from orderone.core.record import Record
from orderone.experiments.agreement import EXACT, Agreement
from orderone.report.charts import Picture, estimates, facets, heatmaps
from orderone.report.theme import BLUE, VERMILION

DRAWN = 32
"""(sample, position) pairs whose entries are kept and drawn."""
TITLES = {"G": "Kernel G", "F": "Normalised kernel F", "Theta": "Tangent kernel Θ"}
SINGLE, MEAN = "one network", "mean of the networks"


def entries(agreement: Agreement) -> pl.DataFrame:
    """At the largest width: a row each entry of a kernel, predicted and measured with errors."""
    rows = [
        {
            "quantity": each.quantity,
            "block": each.block,
            "row": i,
            "column": j,
            "predicted": at(each.predicted.value, i, j),
            "predicted error": at(each.predicted.se, i, j),
            "measured": at(each.measured.value, i, j),
            "measured error": at(each.measured.se, i, j),
        }
        for each in agreement.widest
        for i in range(min(DRAWN, len(each.predicted.value)))
        for j in range(min(DRAWN, len(each.predicted.value)))
    ]
    return pl.DataFrame(rows)


def errors(agreement: Agreement) -> pl.DataFrame:
    """A row each kernel, width and network, and one for the networks' mean."""
    rows: list[dict[str, str | int | float]] = []
    for each in agreement.comparisons:
        place = {"quantity": each.quantity, "block": each.block, "width": each.width}
        rows += [
            {**place, "of": SINGLE, "error": stray, "overlap": overlap}
            for stray, overlap in zip(each.strays, each.overlaps, strict=True)
        ]
        gap = each.measured.value - each.predicted.value
        error = float(gap.norm() / each.predicted.value.norm())
        rows.append({**place, "of": MEAN, "error": error, "overlap": each.overlap})
    return pl.DataFrame(rows)


def records(agreement: Agreement) -> Iterator[Record]:
    """All that is drawn; the step is the block's place, or the width."""
    places = {each.block: each.place for each in agreement.comparisons}
    for row in entries(agreement).iter_rows(named=True):
        labels = {"quantity": row["quantity"], "block": row["block"]}
        labels |= {"row": f"{row['row']:02}", "column": f"{row['column']:02}"}
        for side in ("predicted", "measured"):
            said = {**labels, "se": f"{row[f'{side} error']:.3g}"}
            yield Record(places[row["block"]], side, row[side], said)
    for row in errors(agreement).iter_rows(named=True):
        labels = {"quantity": row["quantity"], "block": row["block"], "of": row["of"]}
        for name in ("error", "overlap"):
            yield Record(row["width"], name, row[name], labels)


def side_by_side(agreement: Agreement, quantity: str, *, title: str) -> Picture:
    """Measured entries over predicted ones, a colour each block."""
    shown = entries(agreement).filter(quantity=quantity).filter(pl.col("row") <= pl.col("column"))
    n = max(agreement.widths)
    return estimates(
        shown.select(
            "block", "row", "column", "predicted", "measured", pl.col("measured error").alias("se")
        ),
        x=("predicted", f"{symbol(quantity)} predicted at infinite width"),
        y=("measured", f"measured at n = {n}"),
        error="se",
        colour=("block", "block"),
        reference=("predicted", "measured = predicted"),
        title=title,
        subtitle=f"{agreement.networks} networks; all pairs of (sample, position)",
    )


def matrices(agreement: Agreement, quantity: str) -> Picture:
    """Prediction and measurement of every block as matrices."""
    n = max(agreement.widths)
    shown = entries(agreement).filter(quantity=quantity)
    sides = [
        shown.select(
            pl.format(f"{{}}: {said}", "block").alias("facet"),
            pl.col("block"),
            pl.col("row").cast(pl.String).str.zfill(2),
            pl.col("column").cast(pl.String).str.zfill(2),
            pl.col(side).alias("value"),
            pl.col(f"{side} error").alias("se"),
        )
        for side, said in (("predicted", "predicted"), ("measured", f"n = {n}"))
    ]
    order = {block: place for place, block in enumerate(shown["block"].unique(maintain_order=True))}
    return heatmaps(
        pl.concat(sides).sort(pl.col("block").replace_strict(order), maintain_order=True),
        row="row",
        column="column",
        value=("value", symbol(quantity)),
        facet="facet",
        title=f"{TITLES[quantity]} by block, predicted and measured",
        subtitle=f"(sample, position) pairs, sample after sample; the first {DRAWN} at most",
    )


def errors_by_width(agreement: Agreement) -> Picture:
    """Relative distance to the prediction, of single networks and of their mean."""
    drawn = errors(agreement).filter(pl.col("error") > EXACT)
    return facets(
        drawn.with_columns(
            facet=pl.col("quantity").replace(TITLES).str.replace("Theta", "Θ"),
            line=pl.format("{}: {}", "block", "of"),
        ),
        x=("width", "width n"),
        y=("error", "relative distance"),
        detail="line",
        facet="facet",
        colour=("of", "distance of"),
        colours={SINGLE: BLUE, MEAN: VERMILION},
        title="Distance to the prediction by width",
        subtitle=f"‖measured − predicted‖ / ‖predicted‖, a line each block; "
        f"{agreement.networks} networks at every width",
    )


def symbol(quantity: str) -> str:
    """A quantity's letter."""
    return quantity.replace("Theta", "Θ")


def at(K: Tensor, i: int, j: int) -> float:
    """An entry as a number."""
    return float(K[i, j])
