"""Before training: four strategies for one model, and whether its output stays of order one."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from orderone.core.record import Record, RecordWriter
from orderone.experiments.coordinates import Coordinates, Line, coordinates
from orderone.experiments.tour.size import Size
from orderone.experiments.tour.stop import Progress, Stop
from orderone.models.build import build
from orderone.models.config import LanguageConfig
from orderone.report.charts import lines
from orderone.report.page import Section
from orderone.scaling.plan import Plan, plan
from orderone.scaling.row import Row

STRATEGIES = ("standard", "neural-tangent", "hybrid", "maximal-update")
STEPS = 2
LONGEST, WORDS = 32, 32
"""Tokens and vocabulary of the checked models: above the vocabulary the r.m.s. change of the output
is the random part at words that the loss does not ask for."""


def planned(config: LanguageConfig) -> Stop:
    """Initial deviation and AdamW factor of every kind of parameter under every strategy."""
    plans = {name: plan(build(config, device="meta"), name) for name in STRATEGIES}
    rows = [
        [
            row.role,
            "×".join(map(str, row.shape)),
            *(_start_and_rate(each[row.name]) for each in plans.values()),
        ]
        for row in _one_of_each(plans["standard"])
    ]
    hidden = {name: _hidden_factor(each) for name, each in plans.items()}
    told = ", ".join(f"{factor:.2g} under {name}" for name, factor in hidden.items())
    return Stop(
        name="plan",
        numbers={"width": config.n, "factors": hidden},
        found=(
            f"Plan: at width {config.n} AdamW's learning rate of a hidden map is multiplied by "
            f"{told}."
        ),
        sections=[
            Section(
                heading="Before: four strategies for this model",
                text="Initial standard deviation, and the factor of AdamW's learning rate.",
                columns=("parameter", "shape", *STRATEGIES),
                rows=rows,
            )
        ],
    )


def checked(
    config: LanguageConfig,
    size: Size,
    seed: int,
    records: RecordWriter,
    progress: Progress,
) -> Stop:
    """How far the output moves in a few AdamW steps, by width, under every strategy."""
    found: dict[str, Coordinates] = {}
    for place, name in enumerate(STRATEGIES):
        found[name] = _coordinates(config, size, seed, name)
        progress(place + 1, len(STRATEGIES))
    frame = pl.concat([_output_change(name, each) for name, each in found.items()])
    for row in frame.to_dicts():
        labels = {"strategy": row["strategy"], "width": str(row["width"])}
        records.write(Record(STEPS, "change of output", row["value"], labels))
    chart = lines(
        frame,
        x=("width", "width n"),
        y=("value", "r.m.s. change of the output"),
        colour=("strategy", "strategy"),
        title=f"How far {STEPS} AdamW steps move the output",
        subtitle=f"Mean over {size.seeds} seeds; of order one is flat",
        log_x=True,
        log_y=True,
        points=True,
    )
    slopes = {name: _output_line(each).slope for name, each in found.items()}
    growing = [name for name, each in found.items() if each.growing]
    return Stop(
        name="check",
        found=f"Coordinate check: {_said(slopes, growing, size.widths)}",
        numbers={"slopes": slopes, "growing": growing},
        sections=[
            Section(
                heading="Before: does the output stay of order one?",
                text=(
                    "A smaller model with an untied head, each strategy at its own usual rate: "
                    "0.001 under standard, 1 with factors."
                ),
                chart=chart,
                alternative="Change of the output against width, a line each strategy",
            )
        ],
    )


def _coordinates(config: LanguageConfig, size: Size, seed: int, strategy: str) -> Coordinates:
    # An untied head: a tied one adds √n / n_vocab at each position's own word.
    small = {"n_vocab": WORDS, "n_out": WORDS, "head_tied": False, "T": min(LONGEST, config.T)}
    base = config.model_dump() | small | {"encoders": min(2, config.encoders)}
    return coordinates(
        lambda width: build(LanguageConfig.model_validate(base | {"n": width})),
        size.widths,
        strategy,
        steps=STEPS,
        seeds=range(seed, seed + size.seeds),
    )


def _one_of_each(made: Plan) -> list[Row]:
    """One row of every kind, in the model's order."""
    kinds: dict[str, Row] = {}
    for row in made.rows:
        kinds.setdefault(row.role, row)
    return list(kinds.values())


def _hidden_factor(made: Plan) -> float:
    return next(row.lr_factor for row in made.rows if row.role == "Q")


def _start_and_rate(row: Row) -> str:
    start = "as made" if row.init_std is None else f"{row.init_std:.2g}"
    return f"{start} · {row.lr_factor:.2g}"


def _output_change(name: str, found: Coordinates) -> pl.DataFrame:
    chosen = found.frame.filter(kind="output", quantity="change", step=STEPS)
    means = chosen.group_by("width").agg(pl.col("value").mean()).sort("width")
    return means.select(pl.lit(name).alias("strategy"), "width", "value")


def _said(slopes: Mapping[str, float | None], growing: list[str], widths: tuple[int, ...]) -> str:
    powers = ", ".join(
        f"{'nothing' if slope is None else f'n^{slope:+.2f}'} under {name}"
        for name, slope in slopes.items()
    )
    verdict = f"something grows under {', '.join(growing)}" if growing else "nothing grows"
    over = ", ".join(map(str, widths))
    return f"over widths {over} the output's change goes as {powers}; {verdict}."


def _output_line(found: Coordinates) -> Line:
    return next(each for each in found.lines if (each.kind, each.quantity) == ("output", "change"))
