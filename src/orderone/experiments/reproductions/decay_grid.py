"""Whether the norm grows depends on weight decay, with a threshold between 0.001 and 0.01.

Source   [MRGSS21] §5.6, App. F, Fig. 6: AdamW, one epoch, 20 × 20 values from 1e-5 to 1e-1
Expect   growth with PyTorch's defaults; at more than half of the learning rates a threshold for the
         encoder's norm that may lie in [0.001, 0.01]
Cost     smoke 15 s on one core; laptop 10 min on 2 cores; paper 20 h at 100 TFLOP/s
Differs  Penn, unless --data is a folder with WikiText-2; branch placement. laptop: 9 × 9 values,
         5 × 5 as coded, 2 layers, n 64, 8,000 sentences, 2,000 words; smoke: 3 × 4 values,
         2 layers, n 32, 400 sentences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from orderone.experiments.decayed_models import ALL, NORMS, Grid, decayed, log_grid, squared
from orderone.experiments.dry_run import DryRun
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.small_models import dry_run, paper_model, small_model
from orderone.experiments.small_training import SmallModel
from orderone.report.charts import heatmaps
from orderone.report.page import Section

PUBLISHED = "the norm grows below, and shrinks above, a weight decay between 0.001 and 0.01"
LOW, HIGH = 0.001, 0.01
DEFAULT = (1e-3, 1e-2)  # AdamW's learning rate and weight decay in PyTorch
CUT = 0.02  # changes of norms beyond it are drawn alike
FAINTEST = 0.3
_WRITTEN, _CODED = "as written", "as coded: mask of zeros"


def reproduce(stage: Stage) -> Outcome:
    """Train over the grid and find where growth ends."""
    models = _models(stage)
    written, coded = decayed(stage, models)
    for grid in (written, coded):
        _keep(stage, grid)
    found = {which: _inside(written, which) for which in NORMS}
    grown = [c for c in written.cells if (c.lr, c.weight_decay) == DEFAULT and c.grows("encoder")]
    held = bool(grown) and 2 * found["encoder"] > len(written.rates)
    return Outcome(
        measured=f"encoder: {_told(written, 'encoder')}; {'growth' if grown else 'no growth'} with "
        f"the defaults. {_size(models[_WRITTEN])}",
        # The smallest scale has too few steps for decay to do anything at a usual rate.
        held=None if stage.scale == "smoke" else held,
        why=_why(written, found),
        as_coded=f"norm with embeddings and head: {_told(written, ALL)}; under the mask of zeros, "
        f"encoder: {_told(coded, 'encoder')}; both: {_told(coded, ALL)}",
        sections=[_map([written, coded]), _table([written, coded])],
    )


def paper() -> DryRun:
    """One epoch for each of 400 pairs, and as many as coded."""
    values = log_grid(20)
    model = paper_model(corpus="wikitext-2", epochs=1)
    return dry_run(squared(model, values, values) * 2, note="--data names WikiText-2's folder")


def _models(stage: Stage) -> dict[str, list[SmallModel]]:
    base = small_model(
        stage,
        corpus="penn" if stage.data is None else "wikitext-2",
        epochs=1,
        checkpoints=1,
        watch_every=10**9,  # the two ends are all that is wanted
        **stage.pick(
            smoke={"sentences": 400, "vocabulary": 300},
            laptop={"layers": 2, "n": 64, "d_ff": 48, "sentences": 8000, "vocabulary": 2000},
            paper={},
        ),
    )
    rates = stage.pick(smoke=log_grid(3), laptop=log_grid(9), paper=log_grid(20))
    decays = stage.pick(smoke=log_grid(5)[1:], laptop=log_grid(9), paper=log_grid(20))
    fewer = stage.pick(smoke=log_grid(3)[1:2], laptop=log_grid(5), paper=log_grid(20))
    coded = replace(base, mask="zero")
    return {
        _WRITTEN: squared(base, rates, decays),
        _CODED: squared(coded, fewer, decays if stage.scale == "smoke" else fewer),
    }


def _keep(stage: Stage, grid: Grid) -> None:
    for cell in grid.cells:
        for which, ratio in cell.ratios.items():
            stage.record(
                "norm_ratio",
                ratio,
                model=grid.name,
                norm=which,
                lr=f"{cell.lr:g}",
                weight_decay=f"{cell.weight_decay:g}",
            )


def _inside(grid: Grid, which: str) -> int:
    """Learning rates whose threshold may lie where the published one does."""
    found = [grid.threshold(lr, which) for lr in grid.rates]
    return sum(1 for each in found if each is not None and each[0] < HIGH and each[1] > LOW)


def _told(grid: Grid, which: str) -> str:
    rate = min(grid.rates, key=lambda lr: abs(lr - DEFAULT[0]))
    return (
        f"at {_inside(grid, which)} of {len(grid.rates)} learning rates the threshold may lie in "
        f"[{LOW:g}, {HIGH:g}], at {rate:g} it is {_interval(grid.threshold(rate, which))}"
    )


def _interval(threshold: tuple[float, float] | None) -> str:
    if threshold is None:
        return "not one"
    low, high = threshold
    if low == 0:
        return f"below {high:g}"
    return f"above {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def _size(models: Sequence[SmallModel]) -> str:
    model = models[0]
    steps = "one epoch" if model.sentences is None else f"{model.steps(model.sentences):,} steps"
    return f"{len(models)} trainings of {model.layers} layers, n {model.n}, {steps}"


def _why(grid: Grid, found: dict[str, int]) -> str:
    nearer = max(NORMS, key=lambda which: found[which])
    if found["encoder"] == found[ALL]:
        text = "Neither norm is nearer to the published threshold."
    else:
        which = "the encoder" if nearer == "encoder" else "everything, embeddings and head included"
        text = f"The published threshold is nearer to that of the norm of {which}."
    return (
        f"{text} Decay takes a share ηλ of θ a step, and what it has to beat depends on the steps "
        "and on the size: a threshold is one of a model and a length of training."
    )


def _map(grids: Sequence[Grid]) -> Section:
    cells = pl.concat([grid.frame() for grid in grids])
    frame = cells.with_columns(change=pl.col("end / start") - 1).with_columns(
        panel=pl.col("model") + ", " + pl.col("norm of"),
        # Never white: a change of a hundredth of a per cent has a sign.
        shade=pl.col("change").sign() * (FAINTEST + pl.col("change").abs() / CUT).clip(0, 1),
    )
    return Section(
        heading="Growth of the norm, Fig. 6",
        text="Columns are learning rates, rows weight decays; blue grows, orange shrinks, "
        f"darkest from {CUT:.0%} on. "
        f"Published is one boundary, at a weight decay of {LOW:g} to {HIGH:g}.",
        chart=heatmaps(
            frame,
            row="weight decay",
            column="learning rate",
            value=("shade", "falls < 0 < grows"),
            facet="panel",
            title="Does the norm grow?",
            subtitle="weight decay down, learning rate across",
            columns=2,
        ),
        alternative="Heat maps of the norm's change over learning rate and weight decay",
    )


def _table(grids: Sequence[Grid]) -> Section:
    return Section(
        heading="Weight decay at which growth ends",
        columns=("learning rate", *(f"{grid.name}, {which}" for grid in grids for which in NORMS)),
        rows=[
            (
                f"{lr:g}",
                *(
                    _interval(grid.threshold(lr, which)) if lr in grid.rates else ""
                    for grid in grids
                    for which in NORMS
                ),
            )
            for lr in grids[0].rates
        ],
    )
