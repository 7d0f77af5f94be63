"""A small language model that trains in a second, and where it does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from orderone.core.run import RunFolder
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_training import SmallModel

TINY = SmallModel(
    placement="branch",
    layers=1,
    n=16,
    d_ff=16,
    H=2,
    epochs=2,
    sentences=64,
    vocabulary=60,
    checkpoints=4,
)


@contextmanager
def stage_in(folder: Path) -> Generator[Stage]:
    """A stage of the smallest scale, in a run folder of its own."""
    run = RunFolder.create(folder / "run", command="reproduce", config={}, seed=0)
    with run.writer() as records:
        yield Stage(
            scale="smoke", seed=0, run=run, records=records, progress=lambda done, total: None
        )
