"""The best learning rate stays where it is as the width grows, but under standard scaling.

Source   ours, beyond [DYZ23]; its factors (1.108)–(1.116) and footnote 26 at s = 0, ½, 1
Expect   in units of the plan's factors, log₂ of the best rate moves by less than half a doubling a
         doubling of the width at every s; under standard scaling it falls
Cost     smoke 20 s on one core; laptop 15 min on two; paper an hour on one large GPU
Differs  nothing is published. laptop: causal language models of 2 encoders, n 32 to 256, 120 steps
         of 16 × 32 byte pairs of Python's library, three seeds; no weight decay. standard has
         weights of std 0.02 at every width, as in practice. paper: n up to 1,024 and 2,000 steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl
from torch import nn

from orderone.core.record import Record
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.side_by_side import all_of
from orderone.experiments.transfer import HALF_DOUBLING, Transfer, best_rate
from orderone.experiments.transfer import transfer as sweep
from orderone.experiments.trial_runs import mean_and_error
from orderone.models.build import build
from orderone.models.config import LanguageConfig
from orderone.report.charts import Picture, estimates
from orderone.report.page import Section

PUBLISHED = "nothing: the paper searches at one width, and maps a rate to a larger model"
STRATEGIES = ("neural-tangent", "hybrid", "maximal-update", "standard")


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the sweeps; rates are powers of 2 by strategy."""

    widths: tuple[int, ...]
    factored: range
    """Powers of rates in units of a plan's factors."""
    uniform: range
    """Powers of standard rates."""
    steps: int
    batch: int
    seeds: int


SMOKE = Size(
    widths=(16, 32), factored=range(-2, 3, 2), uniform=range(-9, -3, 2), steps=12, batch=4, seeds=2
)
LAPTOP = Size(
    widths=(32, 64, 128, 256),
    factored=range(-2, 5),
    uniform=range(-12, -4),
    steps=120,
    batch=16,
    seeds=3,
)
PAPER = Size(
    widths=(128, 256, 512, 1024),
    factored=range(-4, 6),
    uniform=range(-15, -5),
    steps=2000,
    batch=64,
    seeds=3,
)
T, VOCABULARY = 32, 512


def model_of_width(width: int) -> nn.Module:
    """A causal language model with heads of 16 channels, at the top level for other processes."""
    return build(config_of_width(width))


def config_of_width(width: int) -> LanguageConfig:
    return LanguageConfig(n=width, H=width // 16, encoders=2, T=T, n_vocab=VOCABULARY)


def reproduce(stage: Stage) -> Outcome:
    """A sweep of rates at every width under each strategy."""
    size = stage.pick(smoke=SMOKE, laptop=LAPTOP, paper=PAPER)
    found: dict[str, Transfer] = {}
    counts = {name: _count(size, name) for name in STRATEGIES}
    for strategy in STRATEGIES:
        before = sum(counts[name] for name in found)
        found[strategy] = sweep(
            model_of_width,
            size.widths,
            [2.0**power for power in _powers(size, strategy)],
            strategy,
            seeds=range(stage.seed, stage.seed + size.seeds),
            steps=size.steps,
            batch=size.batch,
            processes=stage.processes,
            progress=lambda done, _, at=before: stage.progress(at + done, sum(counts.values())),
        )
        _keep(stage, strategy, found[strategy])
    answers = {name: _as_expected(name, each) for name, each in found.items()}
    return Outcome(
        measured=_measured(size, found),
        held=all_of(answers.values()),
        why=_why(found, answers),
        sections=_sections(size, found),
    )


def paper() -> DryRun:
    """The largest width's count of parameters; all widths at its price."""
    count = sum(_count(PAPER, name) for name in STRATEGIES)
    return trainings(
        config_of_width(PAPER.widths[-1]),
        count=count,
        steps=PAPER.steps,
        tokens_per_step=PAPER.batch * T,
        note="every width is counted as the largest",
    )


def _powers(size: Size, strategy: str) -> range:
    return size.uniform if strategy == "standard" else size.factored


def _count(size: Size, strategy: str) -> int:
    return len(size.widths) * len(_powers(size, strategy)) * size.seeds


def _keep(stage: Stage, strategy: str, found: Transfer) -> None:
    for row in found.frame.to_dicts():
        lr = f"{row['lr']:g}"
        at = {"width": str(row["width"]), "lr": lr, "seed": str(row["seed"])}
        stage.records.write(Record(0, "loss", row["loss"], {"strategy": strategy, **at}))
    for each in found.optima:
        stage.record("best lr", each.lr, strategy=strategy, width=str(each.width))
    if found.shift is not None:
        stage.record("slope", found.shift.value, strategy=strategy)


def _as_expected(strategy: str, found: Transfer) -> bool | None:
    """Of a plan: the whole interval within half a doubling. Of standard: all of it below zero."""
    shift = found.shift
    if shift is None or any(each.at_edge for each in found.optima):
        return None
    if strategy == "standard":
        return True if shift.high < 0 else (False if shift.low >= 0 else None)
    if max(abs(shift.low), abs(shift.high)) <= HALF_DOUBLING:
        return True
    beyond = shift.low > HALF_DOUBLING or shift.high < -HALF_DOUBLING
    return False if beyond else None


def _slope(found: Transfer) -> str:
    shift = found.shift
    return "–" if shift is None else f"{shift.value:+.2f} [{shift.low:+.2f}, {shift.high:+.2f}]"


def _measured(size: Size, found: dict[str, Transfer]) -> str:
    slopes = ", ".join(f"{_slope(each)} {name}" for name, each in found.items())
    return (
        f"doublings of the best rate a doubling of the width, with 95% intervals over {size.seeds} "
        f"seeds, n {size.widths[0]} to {size.widths[-1]}, {size.steps:,} steps: {slopes}"
    )


def _why(found: dict[str, Transfer], answers: dict[str, bool | None]) -> str:
    edge = [name for name, each in found.items() if any(o.at_edge for o in each.optima)]
    wide = [name for name, answer in answers.items() if answer is None and name not in edge]
    off = [name for name, answer in answers.items() if answer is False]
    said: list[str] = []
    if edge:
        said.append(f"For some seed the best rate was the first or last tried: {', '.join(edge)}.")
    if wide:
        said.append(f"The interval reaches over the bound: {', '.join(wide)}.")
    if off:
        said.append(f"Not as expected: {', '.join(off)}.")
    return " ".join(said)


def _sections(size: Size, found: dict[str, Transfer]) -> list[Section]:
    columns = ("strategy", *(f"best lr at n {width}" for width in size.widths), "slope")
    sections = [
        Section(
            heading="The best learning rate by width",
            text="In units of the plan's factors, over its mean at the smallest width. The slope "
            "is of log₂ lr on log₂ n, with its 95% interval over seeds and widths.",
            chart=_optima(found),
            alternative="Best learning rate over width, a line of points each strategy",
            columns=columns,
            rows=[
                (name, *(f"{each.lr:.3g}" for each in by.optima), _slope(by))
                for name, by in found.items()
            ],
        )
    ]
    return sections + [
        Section(
            heading=f"Loss by learning rate: {name}",
            chart=each.chart(),
            alternative=f"Validation loss over learning rate under {name}, a line each width",
        )
        for name, each in found.items()
    ]


def _optima(found: dict[str, Transfer]) -> Picture:
    """log₂ of the best rate, with one standard error over seeds."""
    rows: list[tuple[int, str, float, float | None]] = []
    for name, each in found.items():
        logs = {optimum.width: _logs(each.frame, optimum.width) for optimum in each.optima}
        at_first, _ = mean_and_error(next(iter(logs.values())))
        for width, by_seed in logs.items():
            mean, error = mean_and_error(by_seed)
            rows.append((width, name, mean - at_first, error))
    schema = {"width": pl.Int64, "strategy": pl.String, "moved": pl.Float64, "error": pl.Float64}
    return estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("width", "width n"),
        y=("moved", "log₂ of the best rate, less that of the smallest width"),
        error="error",
        colour=("strategy", "strategy"),
        reference=(0.0, "the rate stays"),
        title="How the best learning rate moves with the width",
        log_x=True,
    )


def _logs(frame: pl.DataFrame, width: int) -> list[float]:
    """log₂ of the best rate at a width, seed by seed."""
    found: list[float] = []
    for _, rows in frame.filter(width=width).sort("lr").group_by("seed", maintain_order=True):
        log, _ = best_rate(rows["lr"].to_list(), rows["loss"].to_list())
        found.append(log / math.log(2))
    return found
