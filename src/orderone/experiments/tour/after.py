"""After training: how the norm grew, how saturated the network is, what its heads look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import fmean

import numpy as np
import polars as pl

from orderone.core.record import Record, RecordWriter
from orderone.data.batches import Batch, PackedStream
from orderone.data.bpe import BytePairs
from orderone.data.corpora import corpus
from orderone.experiments.tour.during import Lesson, model_config, untrained
from orderone.experiments.tour.stop import Stop
from orderone.probes.heads import Heads, heads
from orderone.probes.saturation import Level, saturation
from orderone.report.charts import Picture, estimates, lines
from orderone.report.maps import grid
from orderone.report.page import Section
from orderone.trajectory.series import trajectory
from orderone.trajectory.told import Trajectory

RANDOM = 3
"""Random networks beside the trained one."""


def grown(lesson: Lesson) -> Stop:
    """The run's own checkpoints, read once as a series."""
    series = trajectory(lesson.run.checkpoints)
    law, account = series.laws["total"], series.dynamics["total"]
    count = len(series.steps)
    told = [f"{name}: {series.laws[name].sentence}." for name in series.headline]
    section = Section(
        heading="After: how the norm grew",
        text=" ".join([*told, f"total: {account.sentence}."]),
        chart=_accounts(series),
        alternative="Norm of the parameters over checkpoints, beside two accounts of its growth",
    )
    return Stop(
        name="trajectory",
        found=f"Trajectory: over {count} checkpoints the norm of the parameters {law.sentence}.",
        numbers={
            "checkpoints": count,
            "law": law.as_json(),
            "dynamics": account.as_json(),
            "findings": len(series.findings),
        },
        sections=[section],
    )


def held_out(lesson: Lesson, windows: int) -> list[Batch]:
    """Windows of text that the model has not learned from."""
    config = model_config(lesson.config)
    tokenizer = BytePairs.load(lesson.run.path / "tokenizer")
    text = corpus("stdlib", limit=lesson.config.data.limit).validation
    tokens = tokenizer.encode_many(text).tokens
    stream = PackedStream(tokens, T=config.T, batch_size=windows, seed=0, shuffle=False, epochs=1)
    return list(islice(stream, 1))


def saturated(lesson: Lesson, batches: Sequence[Batch], records: RecordWriter, seed: int) -> Stop:
    """Cosine with the saturated network by layer, trained beside random."""
    seeds = range(seed + 1, seed + 1 + RANDOM)
    found = saturation(lesson.model, batches, fresh=lambda s: untrained(lesson, s), seeds=seeds)
    assert found.random is not None
    levels: dict[str, Sequence[Level]] = {"trained": found.layers, "random": found.random}
    frame = _levels(levels)
    for row in frame.to_dicts():
        labels = {"layer": row["layer"], "network": row["network"]}
        records.write(Record(0, "saturation", row["cosine"], labels))
    chart = estimates(
        frame,
        x=("layer", "layer, in the order computed"),
        y=("cosine", "cosine of f(x; θ) and f(x; 1024 θ)"),
        error="se",
        colour=("network", "network"),
        title="Saturation by layer",
        subtitle=f"Random: mean of {RANDOM} initialisations of the same plan",
    )
    last = {network: each[-1].cosine for network, each in levels.items()}
    return Stop(
        name="saturation",
        found=(
            f"Saturation: at the last layer the trained network's cosine with its saturated self "
            f"is {last['trained']:.2f}, a random one's {last['random']:.2f}."
        ),
        numbers={
            "layers": {network: [e.cosine for e in each] for network, each in levels.items()},
            "collapsed": found.collapsed,
        },
        sections=[
            Section(
                heading="After: saturation",
                text=" ".join(found.said),
                chart=chart,
                alternative="Cosine with the saturated network by layer, trained and random",
            )
        ],
    )


def attended(lesson: Lesson, batches: Sequence[Batch], records: RecordWriter) -> Stop:
    """Positions that heads look at, in the network as it is and saturated."""
    found = heads(lesson.model, batches)
    for each in found.heads:
        labels = {"layer": each.layer, "head": str(each.head), "kind": each.kind}
        records.write(Record(0, "saturated positions", each.saturated_positions, labels))
        records.write(Record(0, "effective positions", each.effective_positions, labels))
    positions = _positions(found)
    section = Section(
        heading="After: what heads look at",
        text=(
            f"Effective positions, e^entropy of a row, in the network as it is. "
            f"{' '.join(found.said)}"
        ),
        chart=_head_map(found),
        alternative="Effective positions of every head, by layer and head",
    )
    return Stop(
        name="heads",
        found=(
            f"Attention: as it is, a head spreads over {positions['effective']:.1f} of the "
            f"{positions['legal']:.1f} positions it may look at; saturated, over "
            f"{positions['saturated']:.2f}."
        ),
        numbers=positions,
        sections=[section],
    )


def _accounts(series: Trajectory) -> Picture:
    """‖θ‖ as it was, and as it were if every step stood at right angles, or all were one line."""
    total = series.groups["total"]
    walked = np.concatenate([[0.0], np.cumsum(total.step_norm)])
    squares = np.concatenate([[0.0], np.cumsum(total.step_norm**2)])
    told = {
        "measured": total.norm,
        "if misaligned, √(‖θ_0‖² + Σ‖δ‖²)": np.sqrt(total.norm[0] ** 2 + squares),
        "if aligned, ‖θ_0‖ + Σ‖δ‖": total.norm[0] + walked,
    }
    rows = [
        (step, account, float(norm))
        for account, norms in told.items()
        for step, norm in zip(series.steps, norms, strict=True)
    ]
    return lines(
        pl.DataFrame(rows, schema=["step", "account", "norm"], orient="row"),
        x=("step", "step"),
        y=("norm", "‖θ‖"),
        colour=("account", "account"),
        title="How the norm grew",
        subtitle="δ is the step from a checkpoint to the next",
        points=True,
    )


def _levels(levels: Mapping[str, Sequence[Level]]) -> pl.DataFrame:
    rows = [
        (each.layer, network, each.cosine, each.se)
        for network, layers in levels.items()
        for each in layers
    ]
    return pl.DataFrame(rows, schema=["layer", "network", "cosine", "se"], orient="row")


def _positions(found: Heads) -> dict[str, float]:
    """Means over heads."""
    return {
        "effective": fmean(each.effective_positions for each in found.heads),
        "legal": fmean(each.legal_positions for each in found.heads),
        "saturated": fmean(each.saturated_positions for each in found.heads),
    }


def _head_map(found: Heads) -> Picture:
    frame = pl.DataFrame(
        [
            {
                "layer": each.layer,
                "head": str(each.head),
                "effective": each.effective_positions,
                "kind": each.kind,
            }
            for each in found.heads
        ]
    )
    return grid(
        frame,
        x=("head", "head"),
        y=("layer", "layer"),
        value=("effective", "positions"),
        title="Effective positions at c = 1",
    )
