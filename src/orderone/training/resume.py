"""Resuming: back to the newest whole checkpoint, with the records of no later step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderone.core.errors import ConfigError
from orderone.core.record import RecordWriter
from orderone.training import checkpoint
from orderone.training.checkpoint import Best, Trained
from orderone.training.config import differences

FREE = ("keep", "checkpoint_every", "parallel", "timeout")
"""Settings that a resumed run may change: no number of the run depends on them."""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a run goes on."""

    step: int = 0
    best: Best | None = None
    damaged: tuple[str, ...] = ()
    """What was wrong with newer checkpoints."""


def resume(folder: Path, trained: Trained, records: RecordWriter | None, *, keep: int) -> Resumed:
    """Everything as it was at the newest checkpoint whose hashes hold; else as at the start.

    Records of later steps are dropped, since those steps will be taken again: each is then there
    once. ``records`` is the leading rank's.
    """
    leads = trained.ranks.leads
    step, damaged = _newest(folder) if leads else (0, ())
    step = trained.ranks.told(step)
    best = None
    if step > 0:
        _, best = checkpoint.load(checkpoint.steps(folder)[step], trained)
    if leads:
        checkpoint.clear_aside(folder)
        for kept in (checkpoint.steps(folder), checkpoint.bests(folder)):
            for path in [path for at, path in kept.items() if at > step]:
                checkpoint.remove(path)
        # The run may have been killed right before it would have done so.
        checkpoint.prune(folder, keep=keep, step=step, best=best)
    if records is not None:
        records.truncate_after(step if step > 0 else -1)  # from the start, 0's are written again
    trained.ranks.wait()
    return Resumed(step=step, best=best, damaged=damaged)


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ConfigError where a run was started with other settings than it is to be resumed with."""
    found = differences(_bound(before), _bound(now))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"a run started with {found[0]}{more}",
            expected="the settings that it was started with",
            do="restore them, or start a new run without --resume",
        )


def clear_unborn(path: Path) -> None:
    """Removes what a run leaves that was killed before it had a description; nothing else."""
    for aside in path.glob(".run.json.*.aside"):
        aside.unlink()
    records = path / "records.jsonl"
    if records.exists() and records.stat().st_size == 0:
        records.unlink()
    with suppress(OSError):
        (path / "checkpoints").rmdir()


def reopen(path: Path) -> None:
    """Removes what a run that ended, or failed, said of its end: it goes on."""
    (path / "result.json").unlink(missing_ok=True)


def _bound(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in FREE}


def _newest(folder: Path) -> tuple[int, tuple[str, ...]]:
    """The newest whole checkpoint's step, 0 for none, and what is wrong with newer ones."""
    damaged: list[str] = []
    for step, path in checkpoint.steps(folder).items():
        wrong = checkpoint.damage(path)
        if wrong is None:
            return step, tuple(damaged)
        damaged.append(wrong)
    return 0, tuple(damaged)
