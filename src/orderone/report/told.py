"""Runs as their folders tell them: description, result and records, without any model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from orderone.core.errors import ConfigError, TornRecordWarning
from orderone.core.record import COLUMNS
from orderone.core.run import RunFolder


@dataclass(frozen=True, kw_only=True)
class Told:
    """One run, under a name of its own."""

    name: str
    folder: RunFolder
    records: pl.DataFrame
    """Columns step, name, value, and ``label 0``… in the order of ``keys``."""
    keys: tuple[str, ...]
    """Label keys as the run wrote them."""
    result: dict[str, Any] | None
    torn: bool

    @property
    def command(self) -> str:
        """The command that made it."""
        return self.folder.command

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; empty where another program wrote something else there."""
        found = self.folder.description["config"]
        return found if isinstance(found, dict) else {}

    @property
    def summary(self) -> dict[str, Any]:
        """What the run said at its end."""
        found = None if self.result is None else self.result["summary"]
        return found if isinstance(found, dict) else {}

    @property
    def status(self) -> str:
        """``done``, ``failed``…, or that it has not ended."""
        return "unfinished" if self.result is None else str(self.result["status"])

    @property
    def last_step(self) -> int | None:
        """Of all records."""
        return None if self.records.is_empty() else int(self.records["step"].to_numpy().max())


def told(paths: Sequence[Path]) -> list[Told]:
    """Every run; each has the shortest end of its path for a name that tells it from the others."""
    whole = [path.resolve() for path in paths]
    for path in whole:
        if whole.count(path) > 1:
            raise ConfigError(
                f"'{path}' twice", expected="each run once", do="name it once, or another run"
            )
    return [_told(path, name) for path, name in zip(paths, _names(whole), strict=True)]


def together(runs: Sequence[Told]) -> tuple[pl.DataFrame, dict[str, str]]:
    """All records with their ``run``, and column → label key; the same key is the same column."""
    keys = list(dict.fromkeys(key for run in runs for key in run.keys))
    places = {key: f"label {index}" for index, key in enumerate(keys)}
    frames: list[pl.DataFrame] = []
    for run in runs:
        frame = run.records.clone()
        frame.columns = [*COLUMNS, *(places[key] for key in run.keys)]
        frames.append(frame.with_columns(pl.lit(run.name).alias("run")))
    joined = pl.concat(frames, how="diagonal") if frames else pl.DataFrame()
    return joined, {place: key for key, place in places.items()}


def _told(path: Path, name: str) -> Told:
    folder = RunFolder.open(path)
    result = folder.result
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = folder.records()
    torn = any(issubclass(each.category, TornRecordWarning) for each in caught)
    keys = tuple(frame.columns[len(COLUMNS) :])
    # By place: polars would read a key such as "*" as a pattern.
    frame.columns = [*COLUMNS, *(f"label {index}" for index in range(len(keys)))]
    return Told(name=name, folder=folder, records=frame, keys=keys, result=result, torn=torn)


def _names(paths: Sequence[Path]) -> list[str]:
    longest = max((len(path.parts) for path in paths), default=1)
    for parts in range(1, longest + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
