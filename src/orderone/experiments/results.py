"""Verdicts as run folders keep them, found again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orderone.core.errors import ConfigError, OrderoneError
from orderone.core.run import RunFolder
from orderone.experiments.reproduction import PICTURE, Scale, Verdict, claim, experiment


@dataclass(frozen=True, kw_only=True)
class Result:
    """A verdict, and the run that came to it."""

    verdict: Verdict
    run: RunFolder

    @property
    def picture(self) -> Path | None:
        """The experiment's first chart, where it drew one."""
        path = self.run.path / PICTURE
        return path if path.exists() else None


def result(path: str | Path) -> Result:
    """Of a run folder that ``orderone reproduce`` finished."""
    run = RunFolder.open(path)
    kept = None if run.result is None else run.result["summary"]
    if run.command != "reproduce" or kept is None:
        raise ConfigError(
            f"'{path}', an unfinished run or one of orderone {run.command}",
            expected="a finished run of orderone reproduce",
            do="name another folder",
        )
    return Result(verdict=verdict_of(kept), run=run)


def verdict_of(kept: dict[str, Any]) -> Verdict:
    """The verdict that was written as ``kept``."""
    return Verdict(**{field.name: kept[field.name] for field in fields(Verdict)})


def last_result(name: str, root: str | Path) -> Result | None:
    """The newest finished run of an experiment among the folders in ``root``."""
    # Names end in date and time; an unfinished or damaged folder is no result.
    for path in sorted(Path(root).glob(f"{name}-[0-9]*"), reverse=True):
        try:
            return result(path)
        except (OrderoneError, KeyError, TypeError):
            continue
    return None


def unmeasured(name: str, scale: Scale, error: OrderoneError) -> Verdict:
    """Of an experiment whose package or data is not here."""
    return Verdict(
        name=name,
        claim=claim(name),
        published=experiment(name).PUBLISHED,
        measured="nothing",
        held=None,
        as_coded=None,
        scale=scale,
        seconds=0.0,
        why=f"Not measured: {error}.",
    )
