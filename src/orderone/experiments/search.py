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
from orderone.experiments.hexagon import Point, Verdict, search
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
    require_possible(settings, limits)
    lr, decay = settings["optimizer"]["lr"], settings["optimizer"]["weight_decay"]
    walk = limits.trials - (limits.seeds - 1)

    def trial(point: Point, seed: int) -> TrialRun:
        at = {"lr": 2.0 ** point[0] * lr, "wd": 2.0 ** point[1] * decay, "seed": seed}
        keys = ("optimizer.lr", "optimizer.weight_decay", "seed")
        return TrialRun(
            settings=changed(settings, dict(zip(keys, at.values(), strict=True))),
            folder=folder / "trials" / point_name(at),
            keep_checkpoints=limits.keep_checkpoints,
        )

    with workers(run_trial, engine=engine, processes=processes) as run:
        tell = _Told(run, limits.trials, progress)

        def evaluate(points: Sequence[Point]) -> Iterator[tuple[Point, float]]:
            ends = tell([trial(point, settings["seed"]) for point in points])
            for index, end in ends:
                if end.why:
                    failures[points[index]] = end.why
                yield points[index], end.loss

        failures: dict[Point, str] = {}
        found = search(evaluate, trials=walk, at_once=at_once or processes)
        seeds = [found.losses[found.best]]
        if found.verdict in ("optimum", "tie"):
            numbers = range(settings["seed"] + 1, settings["seed"] + limits.seeds)
            ends = dict(tell([trial(found.best, seed) for seed in numbers]))
            seeds += [ends[index].loss for index in sorted(ends)]
    return Searched(
        verdict=found.verdict,
        lr=2.0 ** found.best[0] * lr,
        weight_decay=2.0 ** found.best[1] * decay,
        best=found.best,
        losses=found.losses,
        seeds=tuple(seeds),
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
