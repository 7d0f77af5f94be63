"""The best learning rate stays where it is as the width grows, but under standard scaling.

Source   ours, beyond [DYZ23]; its factors (1.108)–(1.116) and footnote 26 at s = 0, ½, 1
Expect   in units of the plan's factors, log₂ of the best rate moves by less than half a doubling a
         doubling of the width at every s; under standard scaling it falls
Cost     smoke 20 s on one core; laptop 15 min on two; paper 4 h on 16 cores
Differs  nothing is published. laptop: causal language models of 2 encoders, n 32 to 256, 120 steps
         of 16 × 32 byte pairs of Python's library, three seeds; no weight decay. standard has
         weights of std 0.02 at every width, as in practice. paper: n 128 to 1,024, 500 steps
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from torch import nn

from orderone.core.record import Record
from orderone.data.corpora import corpus
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.side_by_side import all_of, judged, reason
from orderone.experiments.slope import student_quantile
from orderone.experiments.transfer import HALF_DOUBLING, Transfer
from orderone.experiments.transfer import transfer as sweep
from orderone.experiments.trials import text_material
from orderone.models.build import build
from orderone.models.config import LanguageConfig
from orderone.report.charts import Picture, estimates, lines
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
    text: int
    """Bytes of the standard library's sources."""


SMOKE = Size(
    widths=(16, 32),
    factored=range(-2, 3, 2),
    uniform=range(-9, -3, 2),
    steps=12,
    batch=4,
    seeds=2,
    text=60_000,
)
LAPTOP = Size(
    widths=(32, 64, 128, 256),
    factored=range(-2, 5),
    uniform=range(-12, -4),
    steps=120,
    batch=16,
    seeds=3,
    text=2_000_000,
)
PAPER = Size(
    widths=(128, 256, 512, 1024),
    factored=range(-3, 5),
    uniform=range(-14, -5),
    steps=500,
    batch=16,
    seeds=3,
    text=4_000_000,
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
    text = corpus("stdlib", limit=size.text)
    material = text_material(text.train, text.validation, VOCABULARY)
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
            material=material,
            processes=stage.processes,
            progress=lambda done, _, at=before: stage.progress(at + done, sum(counts.values())),
        )
        _keep(stage, strategy, found[strategy])
    answers = {name: _as_expected(name, each) for name, each in found.items()}
    return Outcome(
        measured=_measured(size, found),
        held=judged(stage, all_of(answers.values())),
        why=reason(stage, _why(found, answers)),
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
            heading="How far the best learning rate moves",
            text="Slope of log₂ lr on log₂ n, with its 95% interval over seeds and widths. Rates "
            "are in units of the plan's factors.",
            chart=_slopes(found),
            alternative="Doublings of the best rate a doubling of the width, a point each strategy",
            columns=columns,
            rows=[
                (name, *(f"{each.lr:.3g}" for each in by.optima), _slope(by))
                for name, by in found.items()
            ],
        ),
        Section(
            heading="The best learning rate by width",
            chart=_optima(found),
            alternative="Best learning rate over width, a line each strategy",
        ),
    ]
    return sections + [
        Section(
            heading=f"Loss by learning rate: {name}",
            chart=each.chart(),
            alternative=f"Validation loss over learning rate under {name}, a line each width",
        )
        for name, each in found.items()
    ]


def _slopes(found: dict[str, Transfer]) -> Picture:
    rows: list[tuple[str, float, float]] = []
    for name, each in found.items():
        if each.shift is not None:
            freedom = each.frame.select(pl.struct("width", "seed").n_unique()).item() - 2
            reach = student_quantile(0.975, freedom)
            rows.append((name, each.shift.value, (each.shift.high - each.shift.low) / 2 / reach))
    schema = {"strategy": pl.String, "slope": pl.Float64, "error": pl.Float64}
    return estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("strategy", "strategy"),
        y=("slope", "doublings of lr a doubling of n"),
        error="error",
        reference=(0.0, "the rate stays"),
        title="How the best learning rate moves with the width",
        subtitle="in units of the plan's factors",
    )


def _optima(found: dict[str, Transfer]) -> Picture:
    """The best rate over that of the smallest width."""
    rows = [
        (each.width, name, each.lr / by.optima[0].lr)
        for name, by in found.items()
        for each in by.optima
    ]
    return lines(
        pl.DataFrame(rows, schema=["width", "strategy", "moved"], orient="row"),
        x=("width", "width n"),
        y=("moved", "best rate over that of the smallest width"),
        colour=("strategy", "strategy"),
        title="The best learning rate by width",
        subtitle="geometric mean over seeds",
        log_x=True,
        log_y=True,
        points=True,
    )
