"""The best (lr, wd) of a training run, found as the paper does on a log2 grid.

Source   [DYZ23] §II.1: a point counts when its six neighbours are worse; then three seeds
Expect   an optimum, within the trials that are allowed
Cost     7 training runs at least, 6 more for each step of the walk at most, and 2 more seeds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from orderone.core.errors import ConfigError
from orderone.experiments.hexagon import Found, Named, Point, Verdict, search_all
from orderone.experiments.trial_runs import (
    TrialEnd,
    TrialRun,
    changed,
    mean_and_error,
    point_name,
    run_trial,
    spread_trials,
)
from orderone.experiments.workers import Engine, Spread, workers
from orderone.training.config import Settings

Progress = Callable[[int, int], None]


class SearchConfig(Settings):
    """Limits of a search; it starts at the configuration's own lr and weight_decay."""

    trials: PositiveInt = 40
    """Training runs at most, seeds included."""
    seeds: PositiveInt = 3
    """Seeds at the optimum; the first is the configuration's."""
    keep_checkpoints: bool = False


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search came to."""

    verdict: Verdict
    lr: float
    weight_decay: float
    best: Point
    losses: dict[Point, float]
    """Of all points tried, with the first seed."""
    seeds: tuple[float, ...]
    """Of the best point, the first one included; nothing more where no optimum was found."""
    failures: dict[Point, str]

    def at(self, point: Point) -> tuple[float, float]:
        """(lr, wd) of a point."""
        i, j = point[0] - self.best[0], point[1] - self.best[1]
        return 2.0**i * self.lr, 2.0**j * self.weight_decay

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Losses by wd downwards and lr to the right, the best one starred, as in Fig. 1."""
        lrs = sorted({i for i, _ in self.losses})
        decays = sorted({j for _, j in self.losses}, reverse=True)
        header = ["wd \\ lr", *(f"{self.at((i, 0))[0]:.3g}" for i in lrs)]
        rows = [[f"{self.at((0, j))[1]:.3g}", *(self._cell((i, j)) for i in lrs)] for j in decays]
        return header, rows

    def _cell(self, point: Point) -> str:
        if point not in self.losses:
            return ""
        loss = self.losses[point]
        return f"{loss:.4f}{' *' if point == self.best else ''}" if loss < math.inf else "diverged"

    def as_json(self) -> dict[str, Any]:
        """What ``orderone search --json`` prints."""
        mean, error = mean_and_error(self.seeds)
        return {
            "verdict": self.verdict,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "loss": _number(mean),
            "standard_error": error,
            "seeds": [_number(loss) for loss in self.seeds],
            "trials": [
                {"lr": self.at(p)[0], "weight_decay": self.at(p)[1], "loss": _number(loss)}
                for p, loss in self.losses.items()
            ],
        }


def search_runs(
    settings: Mapping[str, Any],
    limits: SearchConfig,
    folder: Path,
    *,
    engine: Engine = "local",
    processes: int = 1,
    at_once: int | None = None,
    progress: Progress | None = None,
) -> Searched:
    """Searches around ``settings``' optimizer.lr and .weight_decay, trials under ``folder``.

    ``at_once`` points are tried together, as many as there are processes where it is not given.
    """
    found = search_all_runs(
        {"": settings},
        limits,
        folder,
        engine=engine,
        processes=processes,
        at_once=at_once,
        progress=progress,
    )
    return found[""]


def search_all_runs(
    settings: Mapping[str, Mapping[str, Any]],
    limits: SearchConfig,
    folder: Path,
    *,
    engine: Engine = "local",
    processes: int = 1,
    at_once: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Searched]:
    """Searches side by side, each around its own start, its trials under ``folder`` / its name."""
    for each in settings.values():
        require_possible(each, limits)

    def trial(name: str, point: Point, seed: int) -> TrialRun:
        start = settings[name]["optimizer"]
        lr, decay = 2.0 ** point[0] * start["lr"], 2.0 ** point[1] * start["weight_decay"]
        at = {"lr": lr, "wd": decay, "seed": seed}
        keys = ("optimizer.lr", "optimizer.weight_decay", "seed")
        return TrialRun(
            settings=changed(settings[name], dict(zip(keys, at.values(), strict=True))),
            folder=folder / name / "trials" / point_name(at),
            keep_checkpoints=limits.keep_checkpoints,
        )

    failures: dict[Named, str] = {}
    with workers(run_trial, engine=engine, processes=processes) as run:
        tell = _Told(run, limits.trials * len(settings), progress)

        def evaluate(points: Sequence[Named]) -> Iterator[tuple[Named, float]]:
            ends = tell([trial(*each, settings[each[0]]["seed"]) for each in points])
            for index, end in ends:
                if end.why:
                    failures[points[index]] = end.why
                yield points[index], end.loss

        walk = limits.trials - (limits.seeds - 1)
        found = search_all(
            evaluate, dict.fromkeys(settings, (0, 0)), trials=walk, at_once=at_once or processes
        )
        further = [
            (name, settings[name]["seed"] + number)
            for name, each in found.items()
            if each.verdict in ("optimum", "tie")
            for number in range(1, limits.seeds)
        ]
        ends = dict(tell([trial(name, found[name].best, seed) for name, seed in further]))
    more: dict[str, list[float]] = {name: [] for name in settings}
    for index, (name, _) in enumerate(further):
        more[name].append(ends[index].loss)
    return {
        name: _searched(
            each,
            settings[name]["optimizer"],
            seeds=more[name],
            failures={point: why for (by, point), why in failures.items() if by == name},
        )
        for name, each in found.items()
    }


def _searched(
    found: Found, start: Mapping[str, Any], *, seeds: Sequence[float], failures: dict[Point, str]
) -> Searched:
    return Searched(
        verdict=found.verdict,
        lr=2.0 ** found.best[0] * start["lr"],
        weight_decay=2.0 ** found.best[1] * start["weight_decay"],
        best=found.best,
        losses=found.losses,
        seeds=(found.losses[found.best], *seeds),
        failures=failures,
    )


def require_possible(settings: Mapping[str, Any], limits: SearchConfig) -> None:
    """ConfigError where there is nothing to search."""
    if settings["optimizer"]["weight_decay"] <= 0:
        raise ConfigError(
            "optimizer.weight_decay = 0, of which there are no doublings",
            expected="a positive one to start from",
            do="set it, or sweep optimizer.lr alone with orderone sweep",
        )
    if limits.trials < limits.seeds:
        raise ConfigError(
            f"search.trials = {limits.trials} with search.seeds = {limits.seeds}",
            expected="a trial beside the further seeds",
            do="raise trials",
        )


class _Told:
    """Trials spread over workers, and counted aloud."""

    def __init__(
        self, run: Spread[TrialRun, TrialEnd], total: int, progress: Progress | None
    ) -> None:
        self._run, self._total, self._progress, self._done = run, total, progress, 0

    def __call__(self, trials: Sequence[TrialRun]) -> Iterator[tuple[int, TrialEnd]]:
        for index, end in spread_trials(self._run, trials):
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)
            yield index, end


def _number(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
