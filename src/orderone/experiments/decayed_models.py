"""Norm growth of small language models over a grid of learning rates and weight decays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from safetensors.torch import load_file

from orderone.core.record import read_records
from orderone.core.reductions import norm
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_training import SmallModel, Task, train
from orderone.experiments.workers import workers

ALL = "everything"
NORMS = ("encoder", ALL)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A training, and its norms at the end over those at the start; NaN where it diverged."""

    lr: float
    weight_decay: float
    ratios: Mapping[str, float]
    """Of the encoder; of everything, embeddings and head included."""

    def grows(self, which: str) -> bool:
        return self.ratios[which] > 1


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells of one model, any learning rate with any weight decay."""

    name: str
    cells: Sequence[Cell]

    @property
    def rates(self) -> list[float]:
        return sorted({each.lr for each in self.cells})

    def threshold(self, lr: float, which: str) -> tuple[float, float] | None:
        """(largest decay with growth, smallest without) at one learning rate.

        The ends are 0 and infinity; None where the norm grows again above a decay that stops it.
        """
        column = sorted((c for c in self.cells if c.lr == lr), key=lambda c: c.weight_decay)
        grows = [cell.grows(which) for cell in column]
        decays = [0.0, *(cell.weight_decay for cell in column), math.inf]
        count = sum(grows)
        return (decays[count], decays[count + 1]) if all(grows[:count]) else None

    def frame(self) -> pl.DataFrame:
        """A row a cell and norm."""
        rows = [
            (self.name, which, each.lr, each.weight_decay, each.ratios[which])
            for each in self.cells
            for which in NORMS
        ]
        schema = ["model", "norm of", "learning rate", "weight decay", "end / start"]
        return pl.DataFrame(rows, schema=schema, orient="row")


def log_grid(count: int) -> list[float]:
    """``count`` numbers from 1e-5 to 1e-1, evenly spaced in the logarithm."""
    return [float(f"{x:.3g}") for x in np.geomspace(1e-5, 1e-1, count)]


def squared(model: SmallModel, rates: Sequence[float], decays: Sequence[float]) -> list[SmallModel]:
    """The model at every learning rate and every weight decay."""
    return [replace(model, lr=lr, weight_decay=wd) for lr, wd in product(rates, decays)]


def decayed(stage: Stage, models: Mapping[str, Sequence[SmallModel]]) -> list[Grid]:
    """A grid each name, all trainings side by side in the stage's processes."""
    tasks = [
        Task(chosen=each, folder=Path(), device=str(stage.device), data=stage.data, seed=stage.seed)
        for some in models.values()
        for each in some
    ]
    # What is wrong with the text is said here: our errors cannot be sent between processes.
    tasks[0].chosen.text(tasks[0].data)
    found: dict[int, Cell] = {}
    # A process takes seconds to begin: as long as all trainings of the smallest scale together.
    with workers(trained_cell, processes=1 if stage.scale == "smoke" else stage.processes) as run:
        for index, cell in run(tasks):
            found[index] = cell
            stage.progress(len(found), len(tasks))
    cells = iter(found[index] for index in range(len(tasks)))
    return [Grid(name=name, cells=[next(cells) for _ in some]) for name, some in models.items()]


def trained_cell(task: Task) -> Cell:
    """Train in a folder that is removed, and keep the norms."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        train(replace(task, folder=folder))
        series = sorted((folder / "series").iterdir())
        ends = [float(norm(load_file(path))) for path in (series[0], series[-1])]
        records = read_records(folder / "records.jsonl")
    everything = records.filter(pl.col("name") == "norm_of_everything").sort("step")["value"]
    return Cell(
        lr=task.chosen.lr,
        weight_decay=task.chosen.weight_decay,
        ratios={"encoder": ends[1] / ends[0], ALL: everything[-1] / everything[0]},
    )
