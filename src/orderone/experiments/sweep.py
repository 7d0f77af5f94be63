"""A training run at every point of a grid over any of its settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from orderone.core.errors import ConfigError
from orderone.experiments.run_config import RunConfig
from orderone.experiments.trial_runs import (
    TrialRun,
    changed,
    point_name,
    run_trial,
    spread_trials,
)
from orderone.experiments.workers import Engine, workers
from orderone.training.config import checked

Grid = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Losses over a grid; infinite where training failed."""

    keys: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]
    losses: tuple[float, ...]
    failures: dict[int, str]

    @property
    def best(self) -> int | None:
        """Index of the lowest loss; None where every trial failed."""
        index = min(range(len(self.losses)), key=self.losses.__getitem__)
        return index if math.isfinite(self.losses[index]) else None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """A row each point, the best one starred."""
        rows = [[*map(str, point), self._cell(index)] for index, point in enumerate(self.points)]
        return [*self.keys, "loss"], rows

    def _cell(self, index: int) -> str:
        loss = self.losses[index]
        if not math.isfinite(loss):
            return self.failures.get(index, "diverged")
        return f"{loss:.4f}{' *' if index == self.best else ''}"

    def as_json(self) -> dict[str, Any]:
        """What ``orderone sweep --json`` prints."""
        trials = [
            {"point": dict(zip(self.keys, point, strict=True)), "loss": _number(loss)}
            for point, loss in zip(self.points, self.losses, strict=True)
        ]
        return {"best": None if self.best is None else trials[self.best], "trials": trials}


def grid(table: Mapping[str, Any], at: str = "") -> Grid:
    """Lists by dotted key of a table [sweep], in which tables may be nested."""
    found: Grid = {}
    for key, value in table.items():
        name = f"{at}{key}"
        if isinstance(value, dict):
            found |= grid(cast("dict[str, Any]", value), f"{name}.")
        elif isinstance(value, list) and value:
            found[name] = cast("list[Any]", value)
        else:
            raise ConfigError(
                f"sweep.{name} = {value!r}",
                expected="a list of values",
                do=f"for example {name} = [1, 2]",
            )
    if not found and not at:
        raise ConfigError(
            "no [sweep]",
            expected="a table of lists, by the settings' names",
            do='add, for example, [sweep] with "optimizer.lr" = [0.001, 0.002]',
        )
    return found


def sweep_runs(
    settings: Mapping[str, Any],
    over: Grid,
    folder: Path,
    *,
    engine: Engine = "local",
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Swept:
    """A trial at every point of the grid, under ``folder``."""
    trials = trials_of(settings, over, folder)
    losses: dict[int, float] = {}
    failures: dict[int, str] = {}
    with workers(run_trial, engine=engine, processes=processes) as run:
        for index, end in spread_trials(run, trials):
            losses[index] = end.loss
            if end.why:
                failures[index] = end.why
            if progress is not None:
                progress(len(losses), len(trials))
    return Swept(
        keys=tuple(over),
        points=tuple(itertools.product(*over.values())),
        losses=tuple(losses[index] for index in range(len(trials))),
        failures=failures,
    )


def trials_of(settings: Mapping[str, Any], over: Grid, folder: Path) -> list[TrialRun]:
    """The trials of a grid, every configuration checked before the first is run."""
    trials: list[TrialRun] = []
    names: set[str] = set()
    for point in itertools.product(*over.values()):
        at = dict(zip(over, point, strict=True))
        name, changes = point_name(at), changed(settings, at)
        checked(RunConfig, changes)
        if name in names:
            raise ConfigError(
                f"the point {name} twice in [sweep]", expected="each once", do="remove one"
            )
        names.add(name)
        trials.append(TrialRun(settings=changes, folder=folder / "trials" / name))
    return trials


def _number(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
