"""Early in training, neural tangent scaling helps the larger encoder–decoder more.

Source   [DYZ23] §II.2, Fig. 5: R2C2 and BART-large after 15,000 of 200,000 updates
Expect   ln(standard loss / neural tangent loss) of the larger size above that of the smaller, by
         more than two standard errors
Cost     smoke 15 s on one core; laptop 10 min on two; paper 3 weeks on one large GPU
Differs  laptop: n 64 with 2 + 2 layers against n 128 with 4 + 4, T 64, the first 300 of 4,000 steps
         of 16 samples of Python's library, five seeds. Rates as in the paper: the smaller's is near
         its best, the larger's untuned, 0.7 of it. Weights of both have the std 0.08, four
         times the paper's 0.02, so that C_Q is BART-large's and R2C2's
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import polars as pl

from orderone.experiments.denoising_runs import (
    EARLY,
    PARAMETERS,
    STANDARD,
    TANGENT,
    Size,
    curves,
    denoising_run,
    published_size,
)
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.side_by_side import Course, apart, at_most, judged, keep, reason, trained
from orderone.experiments.trial_runs import mean_and_error, point_name
from orderone.models.presets import preset
from orderone.report.charts import Picture, estimates, lines
from orderone.report.page import Section

PUBLISHED = (
    "loss 1.163 standard against 1.135 neural tangent in R2C2 (ratio 1.025), 1.203 against 1.201 "
    "in BART-large (ratio 1.002)"
)
STRATEGIES = (STANDARD, TANGENT)
Runs = dict[tuple[str, str], list[Course]]
"""Trainings of every seed by size and strategy."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sizes, the same tokens, and the standard rate of each."""

    smaller: Size
    larger: Size
    rates: tuple[float, float]
    seeds: int

    @property
    def sizes(self) -> dict[str, tuple[Size, float]]:
        """(size, rate) by name."""
        both = zip((self.smaller, self.larger), self.rates, strict=True)
        return {f"n {size.n}": (size, rate) for size, rate in both}


_TINY = Size(
    n=16, layers=1, steps=20, warmup=4, length=200, batch=8, T=32, vocabulary=300, text=60_000
)
_SMALL = Size(
    n=64, layers=2, steps=300, warmup=100, length=4000, batch=16, T=64, vocabulary=1024, text=10**6
)
SMOKE = Pair(
    smaller=_TINY,
    larger=replace(_TINY, n=32, layers=2, std_width=16),
    rates=(1.6e-2, 1.1e-2),
    seeds=2,
)
LAPTOP = Pair(
    smaller=_SMALL,
    larger=replace(_SMALL, n=128, layers=4, std_width=64),
    rates=(4e-3, 2.8e-3),
    seeds=5,
)


def reproduce(stage: Stage) -> Outcome:
    """Four trainings from every seed."""
    pair = stage.pick(smoke=SMOKE, laptop=LAPTOP, paper=_paper())
    runs = _runs(stage, pair)
    for (size, strategy), courses in runs.items():
        for seed, course in enumerate(courses):
            keep(stage, course, size=size, strategy=strategy, seed=str(seed))
    smaller, larger = (_advantages(runs, size) for size in pair.sizes)
    difference = apart(larger, smaller)
    return Outcome(
        measured=_measured(pair, runs, difference),
        held=judged(stage, _above(difference)),
        why=reason(stage, _why(pair, difference)),
        sections=_sections(pair, runs),
    )


def paper() -> DryRun:
    """Both strategies for each of the two models, from one seed."""
    r2c2, bart = (
        trainings(
            preset(name),
            count=len(STRATEGIES),
            steps=EARLY,
            tokens_per_step=size.batch * size.T,
            published=PARAMETERS[name],
        )
        for name, size in (("r2c2", _paper().larger), ("bart-large", _paper().smaller))
    )
    return replace(
        r2c2,
        steps=r2c2.steps + bart.steps,
        tokens=r2c2.tokens + bart.tokens,
        flops=r2c2.flops + bart.flops,
        note="parameters and memory are R2C2's; tokens are those to be restored, as many are read; "
        "--data names a folder of text/ and gpt2/",
    )


def _paper() -> Pair:
    return Pair(
        smaller=published_size("bart-large", steps=EARLY, micro_batch=64),
        larger=published_size("r2c2", steps=EARLY, micro_batch=16),
        rates=(1e-3, 7e-4),
        seeds=1,
    )


def _runs(stage: Stage, pair: Pair) -> Runs:
    keys = {
        point_name({"n": size.n, "strategy": strategy, "seed": seed}): (name, strategy, seed)
        # The larger first: what takes longest must not begin last.
        for name, (size, _) in reversed(pair.sizes.items())
        for strategy in STRATEGIES
        for seed in range(stage.seed, stage.seed + pair.seeds)
    }
    settings = {
        folder: denoising_run(
            stage, pair.sizes[name][0], strategy=strategy, lr=pair.sizes[name][1], seed=seed
        )
        for folder, (name, strategy, seed) in keys.items()
    }
    found: Runs = {}
    for folder, course in trained(stage, settings).items():
        found.setdefault(keys[folder][:2], []).append(course)
    return found


def _advantages(runs: Runs, size: str) -> list[float]:
    """ln(standard / neural tangent) of the losses, seed by seed."""
    pairs = zip(runs[size, STANDARD], runs[size, TANGENT], strict=True)
    return [
        math.log(standard.loss / tangent.loss)
        if not (standard.failed or tangent.failed)
        else math.nan
        for standard, tangent in pairs
    ]


def _above(difference: tuple[float, float | None]) -> bool | None:
    """Whether the larger's advantage is the larger, beyond doubt."""
    value, error = difference
    return at_most(-value, error, 0.0) if math.isfinite(value) else None


def _ratio(advantages: list[float]) -> str:
    mean, error = mean_and_error(advantages)
    return f"{math.exp(mean):.3f}" + ("" if error is None else f" ± {math.exp(mean) * error:.3f}")


def _measured(pair: Pair, runs: Runs, difference: tuple[float, float | None]) -> str:
    told: list[str] = []
    for name in pair.sizes:
        losses = [
            mean_and_error([course.loss for course in runs[name, strategy]])[0]
            for strategy in STRATEGIES
        ]
        ratio = _ratio(_advantages(runs, name))
        both = f"{losses[0]:.3f} standard, {losses[1]:.3f} neural tangent"
        told.append(f"{both}, ratio {ratio}, {name}")
    reach = "" if difference[1] is None else f" ± {difference[1]:.4f}"
    seeds = f"{pair.seeds} seed{'s' if pair.seeds > 1 else ''}"
    steps, length = pair.smaller.steps, pair.smaller.length or pair.smaller.steps
    return (
        f"loss after {steps:,} of {length:,} steps, {seeds}: {'; '.join(told)}; the logarithm of "
        f"the ratio changes by {difference[0]:+.4f}{reach} from the smaller to the larger"
    )


def _why(pair: Pair, difference: tuple[float, float | None]) -> str:
    if pair.seeds == 1:
        return "One seed has no spread to judge by."
    if not math.isfinite(difference[0]):
        return "A training failed, so there is no ratio."
    if _above(difference) is None:
        return "The seeds' spread is too large to tell the two sizes apart."
    return ""


def _sections(pair: Pair, runs: Runs) -> list[Section]:
    setting = f"{pair.smaller.batch} samples a step, mean over {pair.seeds} seeds"
    return [
        Section(
            heading="Validation loss early in training, Fig. 5",
            chart=_curves(pair, runs, setting),
            alternative="Validation loss over steps for two sizes and two strategies",
            columns=("size", "strategy", "lr", "loss", "standard error"),
            rows=[_row(pair, runs, name, each) for name in pair.sizes for each in STRATEGIES],
        ),
        Section(
            heading="What neural tangent scaling gains",
            text="Standard loss over neural tangent's, seed by seed; above 1 it helps.",
            chart=_gains(pair, runs),
            alternative="Ratio of losses for the smaller and the larger size, with bars",
        ),
    ]


def _row(pair: Pair, runs: Runs, name: str, strategy: str) -> tuple[str, ...]:
    size, rate = pair.sizes[name]
    mean, error = mean_and_error([course.loss for course in runs[name, strategy]])
    lr = rate * (1.0 if strategy == STANDARD else size.n**1.5)
    return name, strategy, f"{lr:.4g}", f"{mean:.4f}", "–" if error is None else f"{error:.4f}"


def _curves(pair: Pair, runs: Runs, setting: str) -> Picture:
    named = {f"{name}, {each}": runs[name, each] for name in pair.sizes for each in STRATEGIES}
    return lines(
        curves(named, "model"),
        x=("step", "step"),
        y=("loss", "validation loss (nats a token)"),
        colour=("model", "model"),
        title="Two sizes, two strategies, the same tokens",
        subtitle=setting,
    )


def _gains(pair: Pair, runs: Runs) -> Picture:
    rows: list[tuple[str, float, float | None]] = []
    for name in pair.sizes:
        mean, error = mean_and_error([math.exp(each) for each in _advantages(runs, name)])
        rows.append((name, mean, error))
    schema = {"size": pl.String, "ratio": pl.Float64, "error": pl.Float64}
    return estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("size", "width n"),
        y=("ratio", "standard loss / neural tangent loss"),
        error="error",
        reference=(1.0, "no gain"),
        title="Gain of neural tangent scaling by size",
        subtitle=f"after {pair.smaller.steps:,} steps",
    )
