"""After training: how the norm grew, how saturated the network is, what its heads look at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import polars as pl

from orderone.core.record import Record, RecordWriter
from orderone.data.batches import Batch, PackedStream
from orderone.data.bpe import BytePairs
from orderone.data.corpora import corpus
from orderone.experiments.tour.during import Lesson, model_config
from orderone.experiments.tour.stop import Stop
from orderone.models.build import build
from orderone.probes.heads import Heads, heads
from orderone.probes.saturation import Saturation, saturation
from orderone.report.charts import lines
from orderone.report.maps import grid
from orderone.report.page import Section
from orderone.trajectory.series import Trajectory, trajectory

SEEDS = (0, 1)
WINDOWS = 16
"""Of validation text, for saturation and heads."""


def grown(lesson: Lesson) -> Stop:
    """The run's own checkpoints, read once as a series."""
    series = trajectory(lesson.run.checkpoints)
    law = series.laws["total"]
    share = series.dynamics["total"].sentence
    return Stop(
        found=f"Trajectory: over {len(series.steps)} checkpoints the norm {law.sentence}; {share}.",
        sections=[_growth(series)],
    )


def held_out(lesson: Lesson) -> list[Batch]:
    """Windows of text that the model has not learned from."""
    config = model_config(lesson.config)
    tokenizer = BytePairs.load(lesson.run.path / "tokenizer")
    text = tokenizer.encode_many(corpus("stdlib").validation).tokens
    stream = PackedStream(text, T=config.T, batch_size=WINDOWS, seed=0, shuffle=False, epochs=1)
    return list(islice(stream, 1))


def saturated(lesson: Lesson, batches: Sequence[Batch], records: RecordWriter) -> Stop:
    """Cosine with the saturated network by layer, trained beside random."""
    config = model_config(lesson.config)
    found = saturation(
        lesson.model, batches, fresh=lambda seed: build(config, seed=seed), seeds=SEEDS
    )
    frame = _levels(found)
    for row in frame.to_dicts():
        labels = {"layer": row["layer"], "network": row["network"]}
        records.write(Record(0, "saturation", row["cosine"], labels))
    chart = lines(
        frame,
        x=("place", "layer, in the order computed"),
        y=("cosine", "cosine of f(x; θ) and f(x; 1024 θ)"),
        colour=("network", "network"),
        title="Saturation by layer",
        points=True,
    )
    section = Section(
        heading="After: saturation",
        text=" ".join(found.said),
        chart=chart,
        alternative="Cosine with the saturated network by layer, trained and random",
    )
    last, other = found.layers[-1], (found.random or found.layers)[-1]
    return Stop(
        found=(
            f"Saturation: at the last layer the trained network's cosine with its saturated self "
            f"is {last.cosine:.2f}; a random one's is {other.cosine:.2f}."
        ),
        sections=[section],
    )


def attended(lesson: Lesson, batches: Sequence[Batch], records: RecordWriter) -> Stop:
    """Positions that heads look at, in the network as it is and saturated."""
    found = heads(lesson.model, batches)
    for each in found.heads:
        labels = {"layer": each.layer, "head": str(each.head), "kind": each.kind}
        records.write(Record(0, "saturated positions", each.saturated_positions, labels))
        records.write(Record(0, "effective positions", each.effective_positions, labels))
    return Stop(
        found=f"Attention: {_kinds(found)}",
        sections=[
            Section(
                heading="After: what heads look at",
                text=(
                    "Effective positions, e^entropy of a row, in the network as it is; saturated, "
                    "nearly every head looks at one."
                ),
                chart=_head_map(found),
                alternative="Effective positions of every head, by layer and head",
            )
        ],
    )


def _growth(series: Trajectory) -> Section:
    spoken = series.headline
    rows = [
        (name, step, float(norm))
        for name in spoken
        for step, norm in zip(series.steps, series.groups[name].norm, strict=True)
    ]
    chart = lines(
        pl.DataFrame(rows, schema=["group", "step", "norm"], orient="row"),
        x=("step", "step"),
        y=("norm", "‖θ‖"),
        colour=("group", "group"),
        title="How the norm grew",
        points=True,
    )
    text = " ".join(f"{name}: {series.laws[name].sentence}." for name in spoken)
    words = "Norm of the parameters over checkpoints"
    return Section(heading="After: trajectory", text=text, chart=chart, alternative=words)


def _levels(found: Saturation) -> pl.DataFrame:
    sides = {"trained": found.layers, "random": found.random or ()}
    return pl.DataFrame(
        [
            {"place": place, "layer": each.layer, "network": side, "cosine": each.cosine}
            for side, levels in sides.items()
            for place, each in enumerate(levels)
        ]
    )


def _kinds(found: Heads) -> str:
    spread = sum(each.effective_positions for each in found.heads) / len(found.heads)
    legal = sum(each.legal_positions for each in found.heads) / len(found.heads)
    said = " ".join(found.said)
    return f"{said} As it is, to {spread:.1f} of {legal:.1f} legal ones in effect."


def _head_map(found: Heads):
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
