"""The tour's order: before, during and after training, from one run folder."""

from __future__ import annotations

from collections.abc import Iterator

from orderone.core.record import RecordWriter
from orderone.core.run import RunFolder
from orderone.experiments.tour.after import attended, grown, held_out, saturated
from orderone.experiments.tour.before import checked, planned
from orderone.experiments.tour.during import lesson, model_config, told, trained
from orderone.experiments.tour.size import Size
from orderone.experiments.tour.stop import Bars, Stop
from orderone.experiments.tour.theory import agreed
from orderone.report.page import Section


def stops(
    run: RunFolder, records: RecordWriter, size: Size, seed: int, *, bars: Bars, quiet: bool
) -> Iterator[Stop]:
    """Every stop as soon as it has been made; ``quiet`` silences the training's own bar."""
    config = lesson(size, seed)
    network = model_config(config)
    yield planned(network)
    with bars("coordinate check") as progress:
        check = checked(network, size, seed, records, progress)
    yield check
    with bars("theory beside networks") as progress:
        theory = agreed(size, seed, records, progress)
    yield theory
    learned = trained(config, run.path, quiet=quiet)
    yield told(learned)
    yield grown(learned)
    batches = held_out(learned, size.windows)
    yield saturated(learned, batches, records, seed)
    yield attended(learned, batches, records)


def whereabouts() -> Section:
    """What the run folder holds, and the commands that read it again."""
    return Section(
        heading="What is left of it",
        text="Everything drawn here can be read again from the run folder.",
        columns=("in the run folder", "what it is", "command"),
        rows=[
            ("training/", "the run: records, checkpoints, tokenizer", "orderone tail"),
            ("training/checkpoints/", "the series of checkpoints", "orderone trajectory"),
            ("watch/", "norms, steps and alignment by layer and by role", "orderone tail"),
            ("records.jsonl", "coordinates, kernels, saturation and heads", ""),
        ],
    )
