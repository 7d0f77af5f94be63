"""A plan to look at: a few lines by role, every parameter with its reason, or a frame."""

from __future__ import annotations

import html as markup
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orderone.scaling.row import Row

if TYPE_CHECKING:
    import polars

SUMMARY = ("role", "tensors", "such as", "fans", "start", "lr factor", "decay factor")
LISTING = ("parameter", "role", "fans", "start", "lr factor", "decay factor", "reason")


def record(row: Row) -> dict[str, Any]:
    """A row of ``orderone plan --json``."""
    return {
        "name": row.name,
        "role": row.role,
        "fan_in": row.fan_in,
        "fan_out": row.fan_out,
        "lookup": row.lookup,
        "head": row.head,
        "init_std": row.init_std,
        "lr_factor": row.lr_factor,
        "decay_factor": row.decay_factor,
        "reason": row.reason,
    }


def frame(rows: Iterable[Row]) -> polars.DataFrame:
    """The table as columns, to filter and sort."""
    import polars as pl

    columns = {
        "name": pl.String,
        "role": pl.String,
        "fan_in": pl.Int64,
        "fan_out": pl.Int64,
        "lookup": pl.Boolean,
        "head": pl.Boolean,
        "init_std": pl.Float64,
        "lr_factor": pl.Float64,
        "decay_factor": pl.Float64,
        "reason": pl.String,
    }
    return pl.DataFrame([record(row) for row in rows], schema=columns)


def text(headline: str, rows: Iterable[Row], footline: str) -> str:
    """What ``print(plan)`` shows: rows that differ in name alone are one line."""
    lines = [headline, *aligned([SUMMARY, *summary_cells(rows)]), footline]
    return "\n".join(line for line in lines if line)


def listing(rows: Iterable[Row]) -> str:
    """Every parameter, nothing cut."""
    return "\n".join(aligned([LISTING, *(listing_cells(row) for row in rows)]))


def html(headline: str, rows: Iterable[Row], footline: str) -> str:
    """What Jupyter shows."""
    head = "".join(f"<th>{markup.escape(cell)}</th>" for cell in SUMMARY)
    body = "".join(
        "<tr>" + "".join(f"<td>{markup.escape(cell)}</td>" for cell in cells) + "</tr>"
        for cells in summary_cells(rows)
    )
    return (
        f"<p>{markup.escape(headline)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{markup.escape(footline)}</p>"
    )


def summary_cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """One line for each distinct role, fans, start and factors."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.role, fans(row), start(row), *factors(row)), []).append(row)
    return [
        (role, str(len(members)), members[0].name, *rest)
        for (role, *rest), members in alike.items()
    ]


def listing_cells(row: Row) -> tuple[str, ...]:
    """The line of one parameter."""
    return (row.name, row.role, fans(row), start(row), *factors(row), row.reason)


def fans(row: Row) -> str:
    """fan-in → fan-out; a lookup has no sum over fan-in, and a head says that it is one."""
    arrow = f"lookup → {row.fan_out}" if row.lookup else f"{row.fan_in} → {row.fan_out}"
    return f"{arrow} (head)" if row.head else arrow


def start(row: Row) -> str:
    """How the row starts."""
    if row.start == "draw":
        assert row.init_std is not None
        return f"{row.distribution} {row.init_std:.4g}"
    return {"zero": "zeros", "one": "ones", "keep": "as the model made it"}[row.start]


def factors(row: Row) -> tuple[str, str]:
    """λ̃, and what multiplies the weight decay."""
    return f"{row.lr_factor:.4g}", f"{row.decay_factor:.4g}" if row.decays else "no decay"


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines whose columns stand under each other."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
