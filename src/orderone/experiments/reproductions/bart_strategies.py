"""Standard and neural tangent scaling of an encoder–decoder agree under (n^(3/2), n^(−3/2)).

Source   [DYZ23] §II.2, Figs. 3, 4: BART-large, span denoising
Expect   the best (lr, wd) of one is the other's best under the map, within a doubling; losses there
         within 2%; divergence at the same multiples of it
Cost     smoke 15 s on one core; laptop 12 min on two; paper 3 months on one large GPU
Differs  laptop: n 64, 2 + 2 layers, T 64, 400 steps of 16 samples of Python's library, three seeds,
         the last loss and not the least; float32, in which no gradient overflows, so what is
         counted is a loss that leaves its level for good or is not finite. Weights have the std
         0.02 √(1024/n), which keeps the paper's C_Q
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from orderone.experiments.denoising_runs import (
    PARAMETERS,
    STANDARD,
    STEPS,
    TANGENT,
    Size,
    curves,
    denoising_run,
    published_size,
)
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.side_by_side import (
    Course,
    all_of,
    apart,
    at_most,
    judged,
    keep,
    reason,
    trained,
)
from orderone.experiments.transfer import best_rate
from orderone.experiments.trial_runs import mean_and_error, point_name
from orderone.models.presets import preset
from orderone.report.charts import Picture, estimates, lines
from orderone.report.page import Section

PUBLISHED = (
    "loss 0.967 standard at lr 1e-3, 0.971 neural tangent at 32.768 = 1024^(3/2) 1e-3; half of it "
    "0.976 and 0.973; twice of it, gradient overflow in both"
)
CLOSE = 0.02
"""Losses nearer than this share of the standard one are alike."""
DOUBLING = 1.0
Tried = dict[tuple[str, int], list[Course]]
"""Trainings of every seed by strategy and power of 2 of the rate."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rates lr 2^k of the standard strategy, mapped for the other."""

    size: Size
    lr: float
    powers: range
    seeds: int


SMOKE = Grid(
    size=Size(n=16, layers=1, steps=20, warmup=4, batch=8, T=32, vocabulary=300, text=60_000),
    lr=1.6e-2,
    powers=range(-1, 2),
    seeds=2,
)
LAPTOP = Grid(
    size=Size(n=64, layers=2, steps=400, warmup=20, batch=16, T=64, vocabulary=1024, text=10**6),
    lr=4e-3,
    powers=range(-3, 4),
    seeds=3,
)


def reproduce(stage: Stage) -> Outcome:
    """Both strategies at every rate from every seed."""
    grid = stage.pick(smoke=SMOKE, laptop=LAPTOP, paper=_paper())
    tried = _tried(stage, grid)
    for (strategy, power), courses in tried.items():
        for seed, course in enumerate(courses):
            keep(stage, course, strategy=strategy, power=str(power), seed=str(seed))
    best = {name: _best(tried, name) for name in (STANDARD, TANGENT)}
    shift = _shift(tried, grid)
    gap = _gap(tried, best)
    return Outcome(
        measured=_measured(tried, grid, best, shift),
        held=judged(stage, all_of([_within(shift), at_most(abs(gap[0]), gap[1], CLOSE)])),
        why=reason(stage, _why(tried, grid, shift, gap)),
        sections=_sections(tried, grid, best),
    )


def paper() -> DryRun:
    """Three rates of each strategy, one seed."""
    grid = _paper()
    return trainings(
        preset("bart-large"),
        count=2 * len(grid.powers) * grid.seeds,
        steps=STEPS,
        tokens_per_step=grid.size.batch * grid.size.T,
        published=PARAMETERS["bart-large"],
        note="tokens are those to be restored, as many are read; --data names a folder of text/ "
        "and gpt2/",
    )


def _paper() -> Grid:
    size = published_size("bart-large", steps=STEPS, micro_batch=64)
    return Grid(size=size, lr=1e-3, powers=range(-1, 2), seeds=1)


def _tried(stage: Stage, grid: Grid) -> Tried:
    keys = {
        point_name({"strategy": strategy, "power": power, "seed": seed}): (strategy, power, seed)
        for strategy in (STANDARD, TANGENT)
        for power in grid.powers
        for seed in range(stage.seed, stage.seed + grid.seeds)
    }
    runs = {
        name: denoising_run(stage, grid.size, strategy=strategy, lr=grid.lr * 2.0**power, seed=seed)
        for name, (strategy, power, seed) in keys.items()
    }
    found: Tried = {}
    for name, course in trained(stage, runs).items():
        found.setdefault(keys[name][:2], []).append(course)
    return found


def _losses(tried: Tried, strategy: str, power: int) -> list[float]:
    return [course.loss for course in tried[strategy, power]]


def _best(tried: Tried, strategy: str) -> int:
    """Power of 2 of the rate with the least mean loss."""
    powers = [power for name, power in tried if name == strategy]
    return min(powers, key=lambda power: mean_and_error(_losses(tried, strategy, power))[0])


def _shift(tried: Tried, grid: Grid) -> tuple[float, float | None] | None:
    """Doublings from the mapped standard optimum to the other; None where one is at an edge."""
    vertices: dict[str, list[float]] = {STANDARD: [], TANGENT: []}
    rates = [2.0**power for power in grid.powers]
    for name, found in vertices.items():
        for seed in range(grid.seeds):
            losses = [tried[name, power][seed].loss for power in grid.powers]
            log, at_edge = best_rate(rates, losses)
            if at_edge:
                return None
            found.append(log / math.log(2))
    return apart(vertices[TANGENT], vertices[STANDARD])


def _within(shift: tuple[float, float | None] | None) -> bool | None:
    return None if shift is None else at_most(abs(shift[0]), shift[1], DOUBLING)


def _gap(tried: Tried, best: dict[str, int]) -> tuple[float, float | None]:
    """Loss of neural tangent over that of standard at their optima, less 1."""
    standard, tangent = (_losses(tried, name, best[name]) for name in (STANDARD, TANGENT))
    if not all(map(math.isfinite, [*standard, *tangent])):
        return math.inf, None
    gap, error = apart(tangent, standard)
    scale = sum(standard) / len(standard)
    return gap / scale, None if error is None else error / scale


def _measured(
    tried: Tried, grid: Grid, best: dict[str, int], shift: tuple[float, float | None] | None
) -> str:
    told: list[str] = []
    for name, power in best.items():
        loss, error = mean_and_error(_losses(tried, name, power))
        spread = "" if error is None else f" ± {error:.3f}"
        told.append(f"{loss:.3f}{spread} {name} at lr {_rate(grid, name, power):.4g}")
    if shift is None:
        moved = "an optimum lies at the edge of the rates tried"
    else:
        reach = "" if shift[1] is None else f" ± {shift[1]:.2f}"
        moved = f"the mapped optimum is {shift[0]:+.2f}{reach} doublings off"
    seeds = f"{grid.seeds} seed{'s' if grid.seeds > 1 else ''}"
    return (
        f"n {grid.size.n}, {grid.size.steps:,} steps, {seeds}: loss {', '.join(told)}; {moved}; "
        f"{_broken(tried)}"
    )


def _rate(grid: Grid, strategy: str, power: int) -> float:
    return grid.lr * 2.0**power * (1.0 if strategy == STANDARD else grid.size.n**1.5)


def _broken(tried: Tried) -> str:
    told = [
        f"{sum(each.failed or each.shifts > 0 for p in _powers(tried) for each in tried[name, p])} "
        f"of {sum(len(tried[name, p]) for p in _powers(tried))} trainings {name}"
        for name in (STANDARD, TANGENT)
    ]
    return f"diverged: {' and '.join(told)}"


def _powers(tried: Tried) -> list[int]:
    return sorted({power for _, power in tried})


def _why(
    tried: Tried,
    grid: Grid,
    shift: tuple[float, float | None] | None,
    gap: tuple[float, float | None],
) -> str:
    reach = "" if gap[1] is None else f" ± {100 * gap[1]:.1f}"
    said = [f"At the optima neural tangent's loss is {100 * gap[0]:+.1f}{reach}% off standard's."]
    if math.isinf(gap[0]):
        said = ["One strategy diverged at every rate."]
    if grid.seeds == 1:
        said.append("One seed has no spread to judge by.")
    elif shift is None:
        said.append("Where an optimum lies at the edge, the true one may lie outside.")
    elif _within(shift) is None:
        said.append("The seeds' spread is too large to tell whether the map holds to a doubling.")
    said.append(_below(tried))
    return " ".join(said)


def _below(tried: Tried) -> str:
    """What halving the rate costs, the second finding of Fig. 3."""
    told: list[str] = []
    for name in (STANDARD, TANGENT):
        power = _best(tried, name)
        if (name, power - 1) in tried:
            loss = apart(_losses(tried, name, power - 1), _losses(tried, name, power))[0]
            told.append(f"{loss:+.3f} {name}")
    return f"Half the best rate costs {', '.join(told)}." if told else ""


def _sections(tried: Tried, grid: Grid, best: dict[str, int]) -> list[Section]:
    setting = f"n {grid.size.n}, {grid.size.layers} + {grid.size.layers} layers"
    setting += f", {grid.size.steps:,} steps"
    return [
        Section(
            heading="Loss by learning rate, Fig. 3",
            text="Rates of neural tangent runs are drawn where the map puts the standard ones.",
            chart=_by_rate(tried, grid, setting),
            alternative="Validation loss over the standard learning rate, for both strategies",
            columns=("standard lr", "neural tangent lr", "standard", "neural tangent"),
            rows=[_row(tried, grid, power) for power in _powers(tried)],
        ),
        Section(
            heading="The best of each, Fig. 4",
            chart=_curves({name: tried[name, power] for name, power in best.items()}, setting),
            alternative="Validation loss over steps at each strategy's best rate",
        ),
    ]


def _row(tried: Tried, grid: Grid, power: int) -> tuple[str, ...]:
    rates = [f"{_rate(grid, name, power):.4g}" for name in (STANDARD, TANGENT)]
    return *rates, *(_cell(tried[name, power]) for name in (STANDARD, TANGENT))


def _cell(courses: list[Course]) -> str:
    mean, error = mean_and_error([course.loss for course in courses])
    failed = sum(course.failed for course in courses)
    shifts = sum(course.shifts > 0 for course in courses)
    spikes = sum(course.spikes for course in courses)
    said = f"{failed} of {len(courses)} not finite" if failed else f"{mean:.4f}"
    said += "" if error is None else f" ± {error:.4f}"
    counted = {"shifted for good": shifts, "spikes": spikes}
    return ", ".join([said, *(f"{count} {what}" for what, count in counted.items() if count)])


def _by_rate(tried: Tried, grid: Grid, setting: str) -> Picture:
    rows: list[tuple[float, str, float, float | None]] = []
    for (strategy, power), courses in tried.items():
        mean, error = mean_and_error([course.loss for course in courses])
        if math.isfinite(mean):
            rows.append((grid.lr * 2.0**power, strategy, mean, error))
    schema = {"lr": pl.Float64, "strategy": pl.String, "loss": pl.Float64, "error": pl.Float64}
    return estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("lr", "standard learning rate"),
        y=("loss", "validation loss (nats a token)"),
        error="error",
        colour=("strategy", "strategy"),
        title="Loss by learning rate under the map",
        subtitle=f"{setting}; what diverged is left out",
        log_x=True,
    )


def _curves(courses: dict[str, list[Course]], setting: str) -> Picture:
    return lines(
        curves(courses, "strategy"),
        x=("step", "step"),
        y=("loss", "validation loss (nats a token)"),
        colour=("strategy", "strategy"),
        title="Each strategy at its best rate",
        subtitle=f"{setting}; mean over seeds",
    )
