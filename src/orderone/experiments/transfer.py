"""The best learning rate stays where it is as the width grows.

Source   [DYZ23] §II, (1.108)–(1.116): learning rates in units of the plan's factors
Expect   the optimum moves by less than half a doubling per doubling of the width; under standard
         it falls with the width
Cost     widths × rates × seeds short runs: minutes on a laptop at widths up to 256
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from orderone.core.errors import ConfigError
from orderone.experiments.coordinates import made
from orderone.experiments.slope import Estimate, loglog_slope, mean_interval
from orderone.experiments.trials import Engine, Make, Material, Trial, run_trials
from orderone.scaling.strategy import strategy as strategy_of
from orderone.scaling.tasks import Task, task

if TYPE_CHECKING:
    from orderone.report.charts import Picture

HALF_DOUBLING = 0.5
"""A shift below this counts as none: the usual grid of learning rates has steps of one doubling."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Best learning rate at a width: mean and interval over seeds, of the logarithm."""

    width: int
    lr: float
    low: float
    high: float
    at_edge: bool
    """For some seed the best rate was the first or the last: the true one may lie outside."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The result of a sweep of learning rates over widths."""

    strategy: str
    frame: pl.DataFrame = field(repr=False)
    """width, lr, seed, loss (infinite where training diverged)."""
    optima: tuple[Optimum, ...]
    shift: Estimate | None
    """Doublings by which the best rate moves per doubling of the width; None: too few points."""

    @property
    def diverged(self) -> tuple[int, ...]:
        """Widths at which no run ended with a finite loss: these have no best rate."""
        return diverged(self.frame)

    @property
    def verdict(self) -> str:
        """Holds when the optimum stays; unclear when it lies at the edge of the rates tried."""
        if self.shift is None or any(optimum.at_edge for optimum in self.optima):
            return "unclear"
        return "holds" if abs(self.shift.value) <= HALF_DOUBLING else "does not hold"

    def chart(self) -> Picture:
        """Loss against learning rate, a colour each width."""
        from orderone.report.charts import lines

        finite = self.frame.filter(pl.col("loss").is_finite())
        means = finite.group_by("width", "lr").agg(pl.col("loss").mean()).sort("width", "lr")
        return lines(
            means,
            x=("lr", "learning rate, in units of the plan's factors"),
            y=("loss", "validation loss (nats)"),
            colour=("width", "width n"),
            title="Loss by learning rate",
            subtitle=self.strategy,
            log_x=True,
            points=True,
        )


def transfer(
    make: Make,
    widths: Sequence[int],
    lrs: Sequence[float],
    strategy: str | None = None,
    *,
    s: float | None = None,
    seeds: int | Sequence[int] = 3,
    steps: int = 200,
    batch: int = 16,
    weight_decay: float = 0.0,
    text: str | None = None,
    material: Material | None = None,
    engine: Engine = "local",
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Transfer:
    """Validation loss of ``make(width)`` at every rate, and how the best rate moves with the width.

    A model of words learns the corpus ``text`` (a name or path; the standard library's sources
    where not given), one of pixels the digits; ``material`` replaces both. Warm-up, then a linear
    fall to 0.
    """
    widths, lrs = _checked(widths, lrs, steps)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise ConfigError("no seeds", expected="at least one", do="give --seeds 3, for example")
    found = task(made(make, widths[0], 0))
    content = material or _material(found, text)
    trials = [
        Trial(
            make=make,
            material=content,
            width=width,
            lr=lr,
            seed=seed,
            strategy=strategy,
            s=s,
            weight_decay=weight_decay,
            steps=steps,
            batch=batch,
        )
        for width in widths
        for lr in lrs
        for seed in numbers
    ]
    losses: dict[int, float] = {}
    for index, loss in run_trials(trials, engine=engine, processes=processes):
        losses[index] = loss
        if progress is not None:
            progress(len(losses), len(trials))
    frame = pl.DataFrame(
        {
            "width": [trial.width for trial in trials],
            "lr": [trial.lr for trial in trials],
            "seed": [trial.seed for trial in trials],
            "loss": [losses[index] for index in range(len(trials))],
        }
    )
    return summary(frame, strategy_of(strategy, s=s).name)


def summary(frame: pl.DataFrame, strategy: str) -> Transfer:
    """Optima and their shift, from the losses alone."""
    points, optima = list[tuple[float, float]](), list[Optimum]()
    for (width,), losses in frame.group_by("width", maintain_order=True):
        vertices = [_vertex(by_seed) for _, by_seed in losses.group_by("seed")]
        logs = [log for log, _ in vertices]
        estimate = mean_interval(logs)
        points += ((float(str(width)), math.exp(log)) for log in logs)
        optima.append(
            Optimum(
                width=int(str(width)),
                lr=math.exp(estimate.value),
                low=math.exp(estimate.low),
                high=math.exp(min(estimate.high, 700.0)),
                at_edge=any(edge for _, edge in vertices),
            )
        )
    enough = len({width for width, _ in points}) > 1 and len(points) > 2 and not diverged(frame)
    shift = loglog_slope([w for w, _ in points], [lr for _, lr in points]) if enough else None
    return Transfer(strategy=strategy, frame=frame, optima=tuple(optima), shift=shift)


def diverged(frame: pl.DataFrame) -> tuple[int, ...]:
    """Widths of which no loss is finite."""
    some = set(frame.filter(pl.col("loss").is_finite())["width"].to_list())
    return tuple(width for width in frame["width"].unique().sort().to_list() if width not in some)


def parabola_vertex(x: Sequence[float], y: Sequence[float]) -> float:
    """Where the parabola through three points is least; y[1] must be below both others."""
    left, right = x[1] - x[0], x[2] - x[1]
    down, up = (y[1] - y[0]) / left, (y[2] - y[1]) / right
    # The slope is ``down`` at the middle of the first pair and ``up`` at that of the second.
    return (x[0] + x[1]) / 2 - down * (left + right) / 2 / (up - down)


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, bool]:
    """(ln of the best rate, whether it lies at the edge of the ``rates``, which rise)."""
    x = [math.log(rate) for rate in rates]
    y = [loss if math.isfinite(loss) else math.inf for loss in losses]
    best = min(range(len(y)), key=y.__getitem__)
    if best in (0, len(y) - 1):
        return x[best], True
    three = y[best - 1 : best + 2]
    # Beside a diverged run there is no parabola: the grid's own point is the answer.
    if not all(map(math.isfinite, three)) or three[1] in (three[0], three[2]):
        return x[best], False
    return parabola_vertex(x[best - 1 : best + 2], three), False


def _vertex(losses: pl.DataFrame) -> tuple[float, bool]:
    rows = losses.sort("lr")
    return best_rate(rows["lr"].to_list(), rows["loss"].to_list())


def _material(found: Task, text: str | None) -> Material:
    from orderone.data.corpora import corpus
    from orderone.experiments.trials import digits_material, text_material

    if found.signal == "words":
        source = corpus(text or "stdlib")
        return text_material(source.train, source.validation, found.classes)
    if found.signal == "pixels":
        return digits_material(found.classes)
    raise ConfigError(
        "a model fed with neither words nor pixels",
        expected="one that learns from text or images",
        do="use orderone check, or sweep in Python",
    )


def _checked(widths: Sequence[int], lrs: Sequence[float], steps: int) -> Any:
    chosen, rates = sorted(set(widths)), sorted(set(lrs))
    if not chosen or chosen[0] < 1 or len(rates) < 3 or rates[0] <= 0 or steps < 1:
        raise ConfigError(
            f"{len(chosen)} widths, {len(rates)} learning rates, {steps} steps",
            expected="positive widths, at least 3 positive rates and 1 step",
            do="for example --widths 64,128,256 --lrs 0.25,0.5,1,2,4",
        )
    return chosen, rates


def as_json(found: Transfer) -> Mapping[str, Any]:
    """What ``orderone transfer --json`` prints."""
    shift = found.shift
    return {
        "verdict": found.verdict,
        "shift": None if shift is None else shift.value,
        "low": None if shift is None else shift.low,
        "high": None if shift is None else shift.high,
        "optima": [
            {
                "width": each.width,
                "lr": None if each.width in found.diverged else each.lr,
                "low": each.low if each.low > 0 else None,
                "high": each.high if math.isfinite(each.high) else None,
                "at_edge": each.at_edge,
            }
            for each in found.optima
        ],
        "losses": [
            {**row, "loss": row["loss"] if math.isfinite(row["loss"]) else None}
            for row in found.frame.to_dicts()
        ],
    }
