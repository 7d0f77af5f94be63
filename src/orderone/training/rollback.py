"""What a run does about spikes: note them, stop, or roll back and skip the batches that led there.

Rolling back goes on from the newest whole checkpoint that is old enough not to have seen the
excursion, without the batches that were learned from between it and the alarm. A ``rollback``
record at that checkpoint's step holds how many these were, so that a run killed later skips them
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal

import polars as pl
from torch import nn

from orderone.core.errors import ConfigError
from orderone.core.record import Record, read_records
from orderone.core.run import RunFolder
from orderone.training import checkpoint, course
from orderone.training.config import Count, TrainingConfig
from orderone.training.course import Attach, Batches, Outcome, Setting
from orderone.training.distributed import ALONE, Ranks
from orderone.training.loop import Observer, StepTaken
from orderone.training.spikes import SpikeRule, SpikeWatch


class SpikesConfig(SpikeRule):
    """The rule, and what is done when an excursion begins."""

    action: Literal["record", "stop", "roll-back"] = "record"
    margin: Count = 10
    """Steps before an excursion whose checkpoints are not trusted."""
    most: Count = 10
    """Rollbacks of a run, after which excursions are noted only."""


class _RollBackError(Exception):
    """Ends a run without a last evaluation and checkpoint: its weights are given up."""

    def __init__(self, to: int, rollback: Record) -> None:
        super().__init__(f"back to step {to}")
        self.to, self.rollback = to, rollback


def train(
    model: nn.Module,
    groups: Iterable[Mapping[str, Any]],
    batches: Batches,
    *,
    spikes: SpikesConfig,
    config: TrainingConfig,
    attach: Attach | None = None,
    run: RunFolder | None = None,
    resumes: bool = False,
    ranks: Ranks = ALONE,
    **rest: Any,
) -> Outcome:
    """``course.train`` with an eye on spikes; the arguments are the same."""
    require_possible(spikes, config)
    if run is None and spikes.action == "roll-back":
        raise _no_way_back("no run folder", "a run folder")
    groups = list(groups)

    def attached(setting: Setting) -> Iterable[Observer]:
        if run is not None:
            _skip(batches, setting, run)
        guard = _Guard(spikes, config, setting, run)
        return [guard, *(attach(setting) if attach else ())]

    while True:
        try:
            return course.train(
                model,
                groups,
                batches,
                config=config,
                attach=attached,
                run=run,
                resumes=resumes,
                ranks=ranks,
                **rest,
            )
        except _RollBackError as error:
            assert run is not None
            _give_up(run, error, ranks)
            resumes = True


class _Guard:
    """The observer: excursions recorded, and acted upon where that is wished."""

    def __init__(
        self, spikes: SpikesConfig, config: TrainingConfig, setting: Setting, run: RunFolder | None
    ) -> None:
        scaled = config.precision == "float16"
        self._watch = SpikeWatch.attached(spikes, setting, scaled=scaled)
        self._spikes, self._config, self._ranks, self._run = spikes, config, setting.ranks, run
        self._passed = 0
        """The last excursion that there was no going back from."""

    def __call__(self, event: StepTaken) -> bool | None:
        self._watch(event)
        if self._spikes.action == "record":
            return None
        # The leading rank decides: after resuming, it alone has read the records.
        began = self._ranks.told(min(self._watch.began.values(), default=0))
        if began == 0 or began == self._passed:
            return None
        if self._spikes.action == "stop":
            return False
        to = self._ranks.told(self._trusted(began))
        if to == 0:
            self._passed = began
            return None
        raise _RollBackError(to, self._rollback(to, began, event.step))

    def _trusted(self, began: int) -> int:
        """The newest whole checkpoint to go back to; 0 where there is none, or it was enough."""
        if self._run is None or not self._ranks.leads:
            return 0
        if len(_rollbacks(self._run)) >= self._spikes.most:
            return 0
        for step, path in checkpoint.steps(self._run.checkpoints).items():
            if step < began - self._spikes.margin and checkpoint.damage(path) is None:
                return step
        return 0

    def _rollback(self, to: int, began: int, now: int) -> Record:
        """Batches of all ranks between the checkpoint and now."""
        world = self._ranks.world
        skipped = (now - to) * self._config.accumulated(world) * world
        labels = {"which": ", ".join(self._watch.began), "began": str(began), "at": str(now)}
        return Record(to, "rollback", skipped, labels)


def _give_up(run: RunFolder, error: _RollBackError, ranks: Ranks) -> None:
    """Removes newer checkpoints, then notes what is to be skipped.

    In this order: a run killed between the two learns the same batches again, and comes back here.
    """
    if ranks.leads:
        for step, path in checkpoint.steps(run.checkpoints).items():
            if step > error.to:
                checkpoint.remove(path)
        with run.writer() as records:
            records.truncate_after(error.to)
            records.write(error.rollback)
            records.flush(fsync=True)
    ranks.wait()


def _skip(batches: Batches, setting: Setting, run: RunFolder) -> None:
    """Draws what rollbacks to this very step skip, and lets it go."""
    count = 0
    if setting.ranks.leads and setting.first > 0:
        if setting.records is not None:
            setting.records.flush()
        there = _rollbacks(run).filter(pl.col("step") == setting.first)
        count = int(there["value"].sum())
    count = setting.ranks.told(count) // setting.ranks.world
    for _ in islice(batches, count):
        pass


def _rollbacks(run: RunFolder) -> pl.DataFrame:
    return read_records(run.records_path).filter(pl.col("name") == "rollback")


def require_possible(spikes: SpikesConfig, config: TrainingConfig) -> None:
    """ConfigError where rolling back is asked for, and no checkpoint would be old enough."""
    if spikes.action != "roll-back":
        return
    if config.checkpoint_every is None:
        raise _no_way_back("no checkpoint_every", "checkpoints on the way")
    reach = (config.keep - 1) * config.checkpoint_every
    if reach < spikes.margin + spikes.persistence:
        raise ConfigError(
            f"keep = {config.keep} checkpoints every {config.checkpoint_every} steps",
            expected=f"one {spikes.margin + spikes.persistence} steps before a spike is seen",
            do="raise keep or checkpoint_every, or lower spikes.margin",
        )


def _no_way_back(found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"spikes.action = 'roll-back' with {found}",
        expected=expected,
        do="give it, or choose action = 'stop'",
    )
