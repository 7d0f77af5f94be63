"""Checkpoints: folders that are whole or absent, and that execute nothing when read.

step00000100/
    model.safetensors        weights and buffers      (model/: shards, of a model on many ranks)
    optimizer.safetensors    state by parameter       (optimizer/: likewise)
    generators-0.json        of Python, NumPy and torch, a file each rank
    state.json               step, data position, loss scaling, the best evaluation
    manifest.json            SHA-256 of every file above

A folder is written aside, synced and renamed, so that a kill at any moment leaves the checkpoints
that there were.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from orderone.core.errors import RunError
from orderone.core.files import cannot_write
from orderone.training import generators, sharded
from orderone.training.distributed import ALONE, Ranks
from orderone.training.loop import Positioned
from orderone.training.tensors import model_tensors, optimizer_state, put_model, put_optimizer

_FORMAT = "orderone checkpoint 1"
_STEP = re.compile(r"step(\d{8,})")
_BEST = re.compile(r"best-step(\d{8,})")
MANIFEST = "manifest.json"
_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Best:
    """The lowest validation loss so far, and its step."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """All that a step changes, and that must come back for the next one to be the same."""

    model: nn.Module
    optimizer: Optimizer
    batches: Positioned
    scaler: GradScaler | None = None
    ranks: Ranks = ALONE


def save(folder: Path, step: int, trained: Trained, *, best: Best | None) -> Path:
    """A checkpoint of ``step``; called by every rank, written by one where that suffices."""
    path = folder / f"step{step:08d}"
    state = {
        "step": step,
        "data": trained.batches.state_dict(),
        "scaler": None if trained.scaler is None else trained.scaler.state_dict(),
        "best": None if best is None else vars(best),
        "world": trained.ranks.world,
    }

    def write(aside: Path) -> None:
        tensors, values = optimizer_state(trained.model, trained.optimizer)
        sharded.write(aside, "model", model_tensors(trained.model), trained.ranks)
        sharded.write(aside, "optimizer", tensors, trained.ranks)
        mine = generators.states(trained.ranks.device)
        _write_json(aside / f"generators-{trained.ranks.rank}.json", mine)
        if trained.ranks.leads:
            _write_json(aside / _STATE, {**state, "optimizer": values})

    _write_folder(path, write, trained.ranks)
    return path


def save_best(folder: Path, best: Best, trained: Trained) -> Path:
    """The weights alone, of the best evaluation."""
    path = folder / f"best-step{best.step:08d}"

    def write(aside: Path) -> None:
        sharded.write(aside, "model", model_tensors(trained.model), trained.ranks)
        if trained.ranks.leads:
            _write_json(aside / _STATE, vars(best))

    _write_folder(path, write, trained.ranks)
    return path


def load(path: Path, trained: Trained) -> tuple[int, Best | None]:
    """Puts everything back as it was at the checkpoint; its step, and the best one so far."""
    state = _read_json(path / _STATE)
    put_model(trained.model, lambda like: sharded.read(path, "model", like), path)
    put_optimizer(
        trained.model,
        trained.optimizer,
        sharded.shapes(path, "optimizer"),
        lambda like: sharded.read(path, "optimizer", like),
        state["optimizer"],
    )
    trained.batches.load_state_dict(state["data"])
    if trained.scaler is not None and state["scaler"] is not None:
        trained.scaler.load_state_dict(state["scaler"])
    own = path / f"generators-{trained.ranks.rank}.json"
    # A rank that was not there before goes on with the generators that it started with.
    if own.exists():
        generators.restore(_read_json(own), trained.ranks.device)
    best = state["best"]
    return int(state["step"]), None if best is None else Best(**best)


def load_weights(path: Path, model: nn.Module) -> None:
    """The weights of any checkpoint, best ones included, in place."""
    put_model(model, lambda like: sharded.read(path, "model", like), path)


def steps(folder: Path) -> dict[int, Path]:
    """Checkpoints by step, the newest first; damaged ones too."""
    return _numbered(folder, _STEP)


def bests(folder: Path) -> dict[int, Path]:
    """Kept best weights by step, the newest first."""
    return _numbered(folder, _BEST)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files; None when every hash is as the manifest says."""
    try:
        manifest = _read_json(path / MANIFEST)
    except RunError as error:
        return error.found
    files = manifest.get("files")
    if manifest.get("format") != _FORMAT or not isinstance(files, dict) or _STATE not in files:
        return f"'{path / MANIFEST}' is of no format that is known here"
    for name, expected in cast("dict[str, Any]", files).items():
        file = path / name
        if not file.is_file():
            return f"'{file}' is missing"
        if _sha256(file) != expected:
            return f"'{file}' does not have the SHA-256 that it was written with"
    return None


def clear_aside(folder: Path) -> None:
    """Removes what killed runs left half written."""
    for path in folder.glob(".*.aside"):
        remove(path)


def prune(folder: Path, *, keep: int, step: int, best: Best | None) -> None:
    """Keeps the last ``keep`` checkpoints and the best weights that the newest one speaks of.

    Only now: until the checkpoint at ``step`` was whole, an earlier best was still spoken of.
    """
    for path in list(steps(folder).values())[keep:]:
        remove(path)
    for at, path in bests(folder).items():
        if at <= step and (best is None or at != best.step):
            remove(path)


def remove(path: Path) -> None:
    """A folder or file, gone."""
    if path.is_dir():
        # The manifest first: a kill half way leaves a checkpoint that says it is damaged.
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_folder(path: Path, write: Callable[[Path], None], ranks: Ranks) -> None:
    """A folder that every rank writes into, and that the leading one makes, seals and renames."""
    aside = path.with_name(f".{path.name}.aside")

    def make() -> None:
        remove(aside)
        aside.mkdir(parents=True)

    def put() -> None:
        _seal(aside)
        remove(path)  # one of this step that was damaged, and not resumed from
        aside.replace(path)
        _sync(path.parent)

    for work, everybody in ((make, False), (lambda: write(aside), True), (put, False)):
        failed: OSError | None = None
        try:
            if everybody or ranks.leads:
                work()
        except OSError as error:
            failed = error
        if ranks.any(failed is not None):  # nobody waits for one that failed
            if ranks.leads:
                remove(aside)
            raise _unwritten(path, failed) from failed


def _unwritten(path: Path, failed: OSError | None) -> RunError:
    if failed is not None:
        return cannot_write(path, failed)
    return RunError(
        f"'{path}' cannot be written: another process failed to",
        expected="every process to write its part",
        do="see its message",
    )


def _seal(folder: Path) -> None:
    """The manifest, after every file is on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _sync(path)
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        _sync(inner)
    hashes = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
    _write_json(folder / MANIFEST, {"format": _FORMAT, "files": hashes})
    _sync(folder / MANIFEST)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    matches = {path: pattern.fullmatch(path.name) for path in folder.glob("*")}
    found = {int(match[1]): path for path, match in matches.items() if match}
    return dict(sorted(found.items(), reverse=True))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("no object of JSON")
        return cast("dict[str, Any]", found)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"'{path}' cannot be read ({error})",
            expected="a file of a checkpoint",
            do="resume from another checkpoint, or start anew",
        ) from error
