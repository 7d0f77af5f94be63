"""A table of points in place of checkpoints: norms by step, and cosines to the step before.

Columns: ``step``; ``norm_GROUP``; ``cosine_to_previous`` (of every group that has no column of its
own) or ``cosine_GROUP``. Groups TOWER_layer_1…N also make the group TOWER, root of the summed
squares.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from orderone.core.errors import DataError
from orderone.trajectory.geometry import Neighbours

Float = npt.NDArray[np.float64]

_LAYER = re.compile(r"(.+)_layer_\d+")
_COMMON = "cosine_to_previous"
_MISSING = ["", "nan", "NaN", "NA", "null", "None"]


@dataclass(frozen=True, kw_only=True)
class Points:
    """The groups of a table, and what was assumed."""

    steps: npt.NDArray[np.int64]
    groups: dict[str, Neighbours]
    notes: tuple[str, ...]


def read_points(path: str | Path) -> Points:
    """The table at ``path``, a CSV file."""
    frame = _frame(Path(path))
    steps = frame["step"].to_numpy().astype(np.int64)
    norms = {
        name.removeprefix("norm_"): frame[name].cast(pl.Float64).to_numpy()
        for name in frame.columns
        if name.startswith("norm_")
    }
    towers = _towers(norms)
    groups = {name: _group(frame, name, norm) for name, norm in (towers | norms).items()}
    notes = [f"'{name}' is the root of its layers' summed squares" for name in towers]
    own = {name for name in groups if f"cosine_{name}" in frame.columns}
    if _COMMON in frame.columns and len(groups) > len(own) + 1:
        notes.append(f"'{_COMMON}' is taken for every group without a cosine of its own")
    return Points(steps=steps, groups=groups, notes=tuple(notes))


def from_norms(norm: Float, cosine: Float | None) -> Neighbours:
    """‖δ‖² = ‖θ‖² + ‖θ'‖² − 2‖θ‖‖θ'‖ cos, and θ·δ by 2θ·δ + ‖δ‖² = Δ‖θ‖², [MRGSS21] §5.5."""
    before, after = norm[:-1], norm[1:]
    one_minus = np.full(len(before), np.nan) if cosine is None else 1 - cosine
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.sqrt((after - before) ** 2 + 2 * before * after * one_minus)
        alignment = (after**2 - before**2 - step**2) / (2 * before * step)
    return Neighbours(norm=norm, step_norm=step, alignment=alignment, one_minus_cosine=one_minus)


def _group(frame: pl.DataFrame, name: str, norm: Float) -> Neighbours:
    column = f"cosine_{name}" if f"cosine_{name}" in frame.columns else _COMMON
    if column not in frame.columns:
        return from_norms(norm, None)
    return from_norms(norm, frame[column].cast(pl.Float64).to_numpy()[1:])


def _towers(norms: dict[str, Float]) -> dict[str, Float]:
    squares: dict[str, Float] = {}
    for name, norm in norms.items():
        layer = _LAYER.fullmatch(name)
        if layer is not None and layer[1] not in norms:
            squares[layer[1]] = squares.get(layer[1], np.zeros(len(norm))) + norm**2
    return {name: np.sqrt(square) for name, square in squares.items()}


def _frame(path: Path) -> pl.DataFrame:
    if path.is_dir():
        raise _unfit(path, "a folder")
    try:
        frame = pl.read_csv(path, infer_schema_length=None, null_values=_MISSING)
        names = pl.read_csv(path, has_header=False, n_rows=1, infer_schema=False).row(0)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unfit(path, str(error)) from error
    _check_names(path, names)
    norms = [name for name in frame.columns if name.startswith("norm_")]
    if "step" not in frame.columns or not norms or not len(frame):
        raise _unfit(path, f"columns {', '.join(frame.columns[:8])} and {len(frame)} rows")
    numbers = [*norms, *(name for name in frame.columns if name.startswith("cosine_"))]
    wrong = [name for name in ["step", *numbers] if not _numeric(frame[name])]
    if wrong:
        raise _unfit(path, f"column '{wrong[0]}' is not of numbers")
    steps = frame["step"]
    if steps.null_count() or not bool((steps.diff().drop_nulls() > 0).all()):
        raise _unfit(path, "steps do not increase")
    # Float columns hold NaN beside null; neither compares as true here.
    if not bool(((steps >= 0) & (steps < 1 << 53) & (steps % 1 == 0)).all()):
        raise _unfit(path, "a step is no whole number from 0 on")
    for name in numbers:
        least, most = (0.0, math.inf) if name in norms else (-1.0, 1.0)
        values = frame[name].cast(pl.Float64).drop_nulls().drop_nans()
        if not bool((values.is_finite() & (values >= least) & (values <= most)).all()):
            raise _unfit(path, f"column '{name}' has what is no {name.partition('_')[0]}")
    return frame


def _check_names(path: Path, names: Sequence[str | None]) -> None:
    """Of two columns of one name polars would rename one."""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise _unfit(path, f"two columns '{twice}'")
    if "norm_" in names:
        raise _unfit(path, "a column 'norm_' without a group's name")


def _numeric(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Null


def _unfit(path: Path, how: str) -> DataError:
    return DataError(
        f"'{path}' is not a table of points: {how}",
        expected="columns step (increasing), norm_GROUP, and cosine_to_previous if known",
        do="correct the table",
    )
