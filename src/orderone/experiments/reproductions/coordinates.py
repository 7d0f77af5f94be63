"""An AdamW step changes the outputs by order one at any width for s = 0, ½ and 1; uniform grows.

Source   [DYZ23] §I.3, eqs. (1.25)–(1.34), (1.108)–(1.116), footnote 26
Expect   exponent of the change of the outputs after a step within 0.1 of 0 under s = 0, ½, 1, and
         above it under standard
Cost     smoke 15 s, laptop 2 min, paper 30 min on one core each
Differs  one encoder and 10 classes of 16² images (smoke), 2 encoders (laptop), 12 (paper); one
         batch of noise; heads of 16 channels, 64 at the paper's n = 768
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from torch import nn

from orderone.experiments.coordinates import Coordinates, Line, coordinates
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.expectation import TOLERANCE
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.workers import workers
from orderone.models.build import build
from orderone.models.config import VisionConfig
from orderone.report.charts import Picture, facets
from orderone.report.page import Section
from orderone.report.theme import BLUE, VERMILION

PUBLISHED = "changes of order one at s = 0, ½ and 1; without the factors they grow with the width"

STRATEGIES = {
    "neural-tangent": "s = 0",
    "hybrid": "s = ½",
    "maximal-update": "s = 1",
    "standard": "standard",
}
PAPER = VisionConfig(n=768, H=12, encoders=12)
BATCH = 4


@dataclass(frozen=True, kw_only=True)
class Task:
    """One strategy, of networks of several widths."""

    strategy: str
    widths: tuple[int, ...]
    encoders: int
    channels: int
    seeds: int
    steps: int


def reproduce(stage: Stage) -> Outcome:
    """Four strategies over widths, a few AdamW steps each."""
    wide: tuple[int, ...] = (64, 128, 256, 512, 1024)
    widths = stage.pick(smoke=wide[:3], laptop=wide, paper=(192, 384, 768))
    tasks = [
        Task(
            strategy=strategy,
            widths=widths,
            encoders=stage.pick(smoke=1, laptop=2, paper=12),
            channels=stage.pick(smoke=16, laptop=16, paper=64),
            seeds=stage.pick(smoke=2, laptop=4, paper=4),
            steps=stage.pick(smoke=1, laptop=3, paper=3),
        )
        for strategy in STRATEGIES
    ]
    found: dict[str, Coordinates] = {}
    with workers(checked, processes=stage.processes) as spread:
        for done, (index, result) in enumerate(spread(tasks), start=1):
            found[tasks[index].strategy] = result
            stage.progress(done, len(tasks))
    found = {strategy: found[strategy] for strategy in STRATEGIES}
    for strategy, result in found.items():
        for row in result.frame.iter_rows(named=True):
            labels = {k: str(row[k]) for k in ("kind", "where", "quantity", "width", "seed")}
            stage.record("rms", row["value"], step=row["step"], strategy=strategy, **labels)
    return outcome(found)


def checked(task: Task) -> Coordinates:
    """Coordinates of a strategy."""

    def make(width: int) -> nn.Module:
        return build(
            VisionConfig(
                n=width,
                H=width // task.channels,
                encoders=task.encoders,
                image_size=16,
                patch=4,
                channels=3,
                n_out=10,
            )
        )

    return coordinates(
        make, task.widths, task.strategy, steps=task.steps, seeds=task.seeds, batch=BATCH
    )


def output_change(result: Coordinates) -> Line:
    """How the change of the outputs goes with the width."""
    (line,) = [each for each in result.lines if (each.kind, each.quantity) == ("output", "change")]
    return line


def outcome(found: Mapping[str, Coordinates]) -> Outcome:
    """Flat under the three, growing under standard, and nothing else grows under the three."""
    changes = {strategy: output_change(result) for strategy, result in found.items()}
    flat = [s for s in STRATEGIES if s != "standard" and _flat(changes[s])]
    uniform = changes["standard"]
    grows = uniform.low is not None and uniform.low > TOLERANCE
    others = {s: found[s].growing for s in STRATEGIES if s != "standard"}
    growing = sorted({line.what for lines in others.values() for line in lines})
    slopes = ", ".join(f"{STRATEGIES[s]}: n^{_value(line):+.2f}" for s, line in changes.items())
    result = found["standard"]
    why = f"Of what is inside, this grows: {'; '.join(growing[:3])}." if growing else ""
    return Outcome(
        measured=(
            f"change of the outputs after {uniform.step} AdamW "
            f"step{'s' if uniform.step > 1 else ''}, {slopes}, over widths "
            f"{result.widths[0]} … {result.widths[-1]}; under standard {len(result.growing)} of "
            f"{len(result.lines)} sizes inside the network grow, under the other three "
            f"{sum(map(len, others.values()))}"
        ),
        held=len(flat) == 3 and grows and not growing,
        why=why,
        sections=_sections(found),
    )


def _flat(line: Line) -> bool:
    """An exponent of 0 within the tolerance, or an interval that has it."""
    if line.slope is None or line.low is None or line.high is None:
        return False
    return abs(line.slope) <= TOLERANCE or line.low <= 0 <= line.high


def _value(line: Line) -> float:
    return 0.0 if line.slope is None else line.slope


def _sections(found: Mapping[str, Coordinates]) -> list[Section]:
    sections = [
        Section(
            heading="Change of the outputs",
            chart=chart(found),
            alternative="Change of the outputs against width: flat in three panels, rising in the "
            "one of standard",
        )
    ]
    sections += [
        Section(
            heading=f"Everything inside, {STRATEGIES[strategy]}",
            chart=found[strategy].chart(),
            alternative="Sizes and changes of all signals and gradients against width",
        )
        for strategy in ("neural-tangent", "standard")
    ]
    rows = [
        [
            STRATEGIES[strategy],
            line.what,
            _slope(line),
            "" if line.expected is None else f"{line.expected:+.2f}",
            line.verdict,
        ]
        for strategy, result in found.items()
        for line in _shown(result)
    ]
    return [
        *sections,
        Section(
            heading="Exponents of n",
            text="The outputs' change under every strategy, and all that grows.",
            columns=("strategy", "what", "exponent", "expected", "verdict"),
            rows=rows,
        ),
    ]


def _shown(result: Coordinates) -> Sequence[Line]:
    change = output_change(result)
    return [change, *(line for line in result.growing if line is not change)]


def _slope(line: Line) -> str:
    if line.slope is None:
        return "does not move"
    return f"{line.slope:+.2f} [{line.low:+.2f}, {line.high:+.2f}]"


def chart(found: Mapping[str, Coordinates]) -> Picture:
    """The outputs' change by width, a panel each strategy."""
    steps = output_change(found["standard"]).step
    frames = [
        result.frame.filter(kind="output", quantity="change", step=steps).with_columns(
            strategy=pl.lit(STRATEGIES[strategy]),
            line=pl.lit(strategy),
            factors=pl.lit("uniform" if strategy == "standard" else "the theory's"),
        )
        for strategy, result in found.items()
    ]
    return facets(
        pl.concat(frames),
        x=("width", "width n"),
        y=("value", "r.m.s. change of the outputs"),
        detail="line",
        facet="strategy",
        colour=("factors", "learning-rate factors"),
        colours={"the theory's": BLUE, "uniform": VERMILION},
        title=f"Change of the outputs after {steps} AdamW step{'s' if steps > 1 else ''}",
        subtitle="of order one is flat; band: one deviation over seeds",
    )


def paper() -> DryRun:
    """Three AdamW steps a network."""
    return trainings(
        PAPER,
        count=4 * 3 * 4,
        steps=3,
        tokens_per_step=BATCH * PAPER.T,
        note="counted at n = 768; two thirds of the networks are narrower",
    )
