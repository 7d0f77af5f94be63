"""``orderone tail``: follows a running run in the terminal, from its records alone."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from orderone.core.run import RunFolder

EVERY_SECONDS = 1.0
_SPARKS = "▁▂▃▄▅▆▇█"


def tail(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    once: Annotated[bool, typer.Option("--once", help="Show what is there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a run's latest records until it ends; Ctrl-C leaves it running."""
    from rich.console import Console
    from rich.live import Live

    from orderone.core.run import RunFolder

    folder = RunFolder.open(run)
    if as_json:
        typer.echo(json.dumps(_latest(folder)))
        return
    console = Console()
    if once:
        console.print(_table(folder))
        return
    with Live(_table(folder), console=console, auto_refresh=False) as live:
        while folder.result is None:
            time.sleep(EVERY_SECONDS)
            live.update(_table(folder), refresh=True)
        live.update(_table(folder), refresh=True)
    if not console.is_terminal:
        console.line()  # a file or pipe gets the last table alone, without its line's end
    typer.echo(f"{folder.result['status']}: {folder.path}")


def _latest(folder: RunFolder) -> dict[str, object]:
    """The last record of every name and labels."""
    from orderone.core.run import strict_json

    rows = [
        {key: value for key, value in row.items() if value is not None}
        for row in _last(_records(folder)).to_dicts()
    ]
    result = folder.result
    status = "running or killed" if result is None else result["status"]
    return {"run": str(folder.path), "status": status, "latest": strict_json(rows, "latest")}


def _table(folder: RunFolder) -> Table:
    """A line for every quantity: its last step and value, its lowest, and its course."""
    import polars as pl
    from rich.table import Table

    records = _records(folder)
    labels = _labels(records)
    table = Table("quantity", "step", "value", "lowest", "course", title=str(folder.path))
    for row in _last(records).to_dicts():
        mine = pl.lit(True)
        for key in ("name", *labels):
            mine &= pl.col(key).eq_missing(pl.lit(row[key], dtype=pl.String))
        values = records.filter(mine)["value"]
        said = " ".join([row["name"], *(f"{k}={row[k]}" for k in labels if row[k] is not None)])
        lowest = values.drop_nans().min()
        low = "" if lowest is None else f"{lowest:.4g}"
        table.add_row(
            said, f"{row['step']:,}", f"{row['value']:.4g}", low, _course(values.to_list())
        )
    return table


def _records(folder: RunFolder) -> pl.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line that is being written is no news here
        return folder.records()


def _labels(records: pl.DataFrame) -> list[str]:
    return [name for name in records.columns if name not in ("step", "name", "value")]


def _last(records: pl.DataFrame) -> pl.DataFrame:
    groups = ["name", *_labels(records)]
    return records.group_by(groups, maintain_order=True).last()


def _course(values: list[float], width: int = 24) -> str:
    """The values as a line of blocks, lowest to highest."""
    import math

    stride = max(1, -(-len(values) // width))
    picked = [value for value in values[::stride] if math.isfinite(value)]
    if not picked:
        return ""
    low, high = min(picked), max(picked)
    span = (high - low) or 1.0
    return "".join(_SPARKS[round((value - low) / span * (len(_SPARKS) - 1))] for value in picked)
