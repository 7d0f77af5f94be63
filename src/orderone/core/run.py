"""The run folder: what was run, on what, and everything that was measured.

run.json        resolved configuration, seed, versions, commit, start
records.jsonl   every record, appended
checkpoints/    what a resumed run starts from
result.json     status and summary, once the run has ended
"""

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import polars as pl

from orderone.core.errors import ConfigError, RunError
from orderone.core.files import cannot_write, write_atomically
from orderone.core.processors import cores
from orderone.core.record import RecordWriter, read_records

_DESCRIPTION = "run.json"
_RESULT = "result.json"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; make it with ``create`` or ``open``."""

    path: Path

    @classmethod
    def create(
        cls, path: str | Path, *, command: str, config: Mapping[str, Any], seed: int | None
    ) -> "RunFolder":
        """A new run folder that says how to repeat the run; an existing one is never reused.

        The command line itself is not kept: it may hold paths or tokens of a user's machine.
        """
        path = Path(path)
        refuse_taken(path)
        description = {
            "command": command,
            "config": strict_json(config, "config"),
            "seed": seed,
            "started": _now(),
            "versions": _versions(),
            "machine": _machine(),
            "code": _commit(),
        }
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "records.jsonl").touch()
        except OSError as error:
            raise cannot_write(path, error) from error
        write_atomically(path / _DESCRIPTION, _pretty(description))
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """An existing run folder."""
        folder = cls(Path(path))
        _ = folder.description
        return folder

    @cached_property
    def description(self) -> dict[str, Any]:
        """All of ``run.json``."""
        return _read_object(self.path / _DESCRIPTION)

    @property
    def command(self) -> str:
        """The command that made the run, without its arguments."""
        return str(self.description["command"])

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return cast(dict[str, Any], self.description["config"])

    @property
    def seed(self) -> int | None:
        """The seed of everything random in the run."""
        return cast("int | None", self.description["seed"])

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def records_path(self) -> Path:
        """The file of records."""
        return self.path / "records.jsonl"

    def records(self) -> pl.DataFrame:
        """All records so far; see ``read_records``."""
        return read_records(self.records_path)

    def writer(self) -> RecordWriter:
        """A writer that appends to the records."""
        return RecordWriter(self.records_path)

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write ``result.json``; numbers that are not finite become "nan", "inf" and "-inf"."""
        result = {"status": status, "finished": _now(), "summary": strict_json(summary, "summary")}
        write_atomically(self.path / _RESULT, _pretty(result))

    @property
    def result(self) -> dict[str, Any] | None:
        """What ``finish`` wrote; None while the run goes on, or when it was killed."""
        path = self.path / _RESULT
        return _read_object(path) if path.exists() else None


def new_run_path(root: str | Path = "runs", name: str = "demo") -> Path:
    """``runs/demo-20260131-235959``, with ``-2``, ``-3``… where that is taken; the folder is made.

    Making it here is what keeps two runs that start in the same second apart.
    """
    stem = f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    attempt = 1
    while True:
        path = Path(root) / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not Path(root).is_dir():
                raise cannot_write(root, FileExistsError(17, "it is a file")) from None
            attempt += 1
        except OSError as error:
            raise cannot_write(path, error) from error


def strict_json(value: Any, where: str) -> Any:
    """``value`` as strict JSON holds it; ConfigError names the entry that JSON cannot hold."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value).items()
        return {str(key): strict_json(each, f"{where}.{key}") for key, each in entries}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [strict_json(x, f"{where}.{i}") for i, x in enumerate(cast(Sequence[Any], value))]
    raise ConfigError(
        f"{where} is a {type(value).__name__}",
        expected="numbers, strings, lists and mappings, which JSON can hold",
        do="convert it before the run is created",
    )


def refuse_taken(path: Path) -> None:
    """RunError where a run folder cannot be made: told before long work, not after it."""
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if not taken:
            there = next(each for each in (path, *path.absolute().parents) if each.exists())
            os.rmdir(tempfile.mkdtemp(prefix=".orderone-", dir=there))
    except OSError as error:
        raise cannot_write(path, error) from error
    if taken:
        raise RunError(
            f"'{path}' exists and is not empty",
            expected="a new or empty folder",
            do="choose another folder, resume the run that is in it, or remove it",
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(
            f"'{path.parent}' has no readable {path.name}: {error.strerror or error}",
            expected="a run folder",
            do="check the path; a run folder holds run.json and records.jsonl",
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    described = path.name == _DESCRIPTION
    keys = {"command", "config", "seed"} if described else {"status", "summary"}
    if not isinstance(value, dict) or not keys <= set(cast(dict[str, Any], value)):
        raise _damaged(path, f"it lacks one of {', '.join(sorted(keys))}")
    found = cast(dict[str, Any], value)
    table = "config" if described else "summary"
    if not isinstance(found[table], dict):
        raise _damaged(path, f"its {table} is no table")
    return found


def _damaged(path: Path, how: str) -> RunError:
    return RunError(
        f"'{path}' is damaged: {how}",
        expected="what this program wrote there",
        do="restore it, or run again",
    )


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "orderone": version("orderone"),
        "platform": platform.platform(),
    }


def _machine() -> dict[str, Any]:
    """Cores that the run may use, and the accelerator that a torch in use sees."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    name = cuda.get_device_name() if cuda is not None and cuda.is_available() else None
    return {"cores": cores(), "accelerator": name}


def _commit() -> dict[str, Any] | None:
    """The commit that this package's own source is at, and whether it was changed since."""
    here = Path(__file__).parent
    # An installed copy may lie inside a repository that does not track it: not our commit then.
    if _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git(here, "rev-parse", "HEAD")
    changes = _git(here, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
