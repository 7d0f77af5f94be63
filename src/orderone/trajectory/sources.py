"""A series of checkpoints: from a folder, from a list of folders or files, or from the Hub."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orderone.core.errors import DataError
from orderone.trajectory.checkpoint import Checkpoint, Series
from orderone.trajectory.findings import Finding, UnreadableError
from orderone.trajectory.hub import REPOSITORY, Remote, Revision, revisions
from orderone.trajectory.mapped import OpenMaps, unreadable
from orderone.trajectory.matching import (
    Cleaned,
    cleaned,
    common_notes,
    matched,
    reference,
    tied_elsewhere,
)
from orderone.trajectory.opened import FileCheckpoint, LazyCheckpoint, Wanted
from orderone.trajectory.ranged import Windows
from orderone.trajectory.safetensors_files import listed
from orderone.trajectory.steps import steps_of
from orderone.trajectory.stored import Weights
from orderone.trajectory.weight_files import choose, contents, open_folder, open_weights, stem

Source = str | os.PathLike[str]
# Copies that trainers keep beside the numbered ones; they carry a step but are no further moment.
_COPY = re.compile(r"(?:best|last|latest|final|ema|main)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One checkpoint before it is opened: a folder, or files of one that holds many."""

    name: str
    folder: Path
    files: tuple[str, ...] | None = None  # None: the whole folder

    def open(self, maps: OpenMaps) -> Weights:
        if self.files is None:
            return open_folder(self.folder, maps)
        return open_weights(self.folder, self.files, maps)

    def stamp(self) -> str:
        """Sizes and times of its files: a pass is not resumed over others."""
        own = (
            self.folder.rglob("*") if self.files is None else map(self.folder.joinpath, self.files)
        )
        stats = [(path.name, path.stat()) for path in sorted(own) if path.is_file()]
        return " ".join(f"{name}:{each.st_size}:{each.st_mtime_ns}" for name, each in stats)


def open_series(
    source: Source | Sequence[Source],
    *,
    order: str | Sequence[str] | None = None,
    keep: bool = True,
    memory: int = 512 << 20,
    remote: Remote | None = None,
) -> Series:
    """The checkpoints of ``source`` by step, and what is wrong with their files.

    ``source`` is a folder, a list of folders and files, or OWNER/NAME (hf:OWNER/NAME) on the Hub.
    Its revisions are downloaded into the Hub's cache; without ``keep`` nothing is written to disk,
    and weights are read by range when they are needed, ahead of which a quarter of ``memory`` may
    be held. ``order`` is a regular expression whose first group is the step, or the checkpoints'
    names in their order.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        repository = REPOSITORY.fullmatch(os.fspath(source))
        if not path.exists() and repository:
            return _hub_series(revisions(repository[1], remote, keep=keep), order, memory)
        return _local_series(_folder_entries(path), order, listed_by_user=False)
    return _local_series(_listed_entries([Path(each) for each in source]), order)


# Which checkpoints there are ---------------------------------------------------------------------


def _folder_entries(folder: Path) -> list[Entry]:
    if folder.is_file():
        return [_file_entry(folder, folder.name)]
    if not folder.is_dir():
        raise DataError(
            f"'{folder}' does not exist",
            expected="a folder of checkpoints, or OWNER/NAME on the Hugging Face Hub",
            do="check the path",
        )
    files, folders = contents(folder)
    below = [Entry(name=n, folder=folder / n) for n in folders if not n.startswith(".")]
    by_stem: dict[str, list[str]] = {}
    for name in files:
        bare = stem(name)
        if bare is not None:
            by_stem.setdefault(bare, []).append(name)
    beside = [
        Entry(name=bare, folder=folder, files=tuple(names)) for bare, names in by_stem.items()
    ]
    entries = [*_candidates(below), *beside]
    if not any(step is not None for step in steps_of([entry.name for entry in entries])):
        if (folder / "checkpoints").is_dir():  # a run's folder
            return _folder_entries(folder / "checkpoints")
        if choose(files) is not None or (".metadata" in files):
            return [Entry(name=folder.name, folder=folder)]
    return entries


def _candidates(entries: list[Entry]) -> list[Entry]:
    """Folders with weights, and those without that are called as one with weights is."""
    having = {entry.name for entry in entries if _has_weights(entry.folder)}
    called = {re.sub(r"\d+", "#", name) for name in having if re.search(r"\d", name)}
    return [e for e in entries if e.name in having or re.sub(r"\d+", "#", e.name) in called]


def _has_weights(folder: Path) -> bool:
    try:
        files, folders = contents(folder)
        inner = (contents(folder / name)[0] for name in folders)
        return choose(files) is not None or any(choose(names) is not None for names in inner)
    except UnreadableError:
        return True  # a folder that may not be opened is to be told, not passed over


def _listed_entries(paths: list[Path]) -> list[Entry]:
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DataError(
            f"'{missing[0]}' does not exist", expected="folders or files", do="check the list"
        )
    common = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.absolute().relative_to(common).as_posix() for path in paths]
    return [
        Entry(name=name, folder=path) if path.is_dir() else _file_entry(path, name)
        for path, name in zip(paths, names, strict=True)
    ]


def _file_entry(path: Path, name: str) -> Entry:
    return Entry(name=name, folder=path.parent, files=(path.name,))


# In which order, and what they hold --------------------------------------------------------------


def _ordered(
    names: list[str], order: str | Sequence[str] | None, *, listed_by_user: bool
) -> tuple[list[tuple[int, str]], list[Finding], list[str]]:
    """Steps and names by step; findings for steps that stand twice; notes on what is left out."""
    steps = steps_of(names, order)
    if listed_by_user and order is None and not any(step is not None for step in steps):
        return list(enumerate(names)), [], ["names without numbers: taken in the order given"]
    numbered = [(step, name) for step, name in zip(steps, names, strict=True) if step is not None]
    without = [name for step, name in zip(steps, names, strict=True) if step is None]
    notes = [f"no step in the name, left out: {listed(without)}"] if without else []
    findings: list[Finding] = []
    first: dict[int, str] = {}
    # A copy never takes the place of the numbered checkpoint.
    for step, name in sorted(numbered, key=lambda each: (each[0], bool(_COPY.match(each[1])))):
        if step not in first:
            first[step] = name
        elif _COPY.match(name):
            notes.append(f"'{name}' is a copy of step {step}, left out")
        else:
            detail = f"step {step} is also that of '{first[step]}', which is taken"
            findings.append(Finding(checkpoint=name, kind="duplicate", detail=detail))
    return list(first.items()), findings, notes


def _local_series(
    entries: list[Entry], order: str | Sequence[str] | None, *, listed_by_user: bool = True
) -> Series:
    by_name = {entry.name: entry for entry in entries}
    if len(by_name) != len(entries):
        raise DataError("a checkpoint twice", expected="each once", do="correct the list")
    if len(entries) == 1 and order is None and steps_of([*by_name]) == [None]:
        listed_by_user = True  # a single checkpoint needs no step
    ordered, findings, notes = _ordered([*by_name], order, listed_by_user=listed_by_user)
    if not ordered:
        likely = "names such as step100/, checkpoint-100/ or model.100.safetensors"
        raise _without_steps("checkpoint", [*by_name], order, likely)
    maps = OpenMaps()
    opened: list[tuple[int, str, Cleaned]] = []
    stamps: dict[str, str] = {}
    said: list[tuple[str, int]] = []
    for step, name in ordered:
        try:
            weights = by_name[name].open(maps)
            opened.append((step, name, cleaned(weights.tensors)))
            stamps[name] = by_name[name].stamp()
        except UnreadableError as error:
            findings.append(error.finding(name))
            continue
        except OSError as error:  # a name that the system refuses, a share that went away
            findings.append(unreadable(by_name[name].folder, error).finding(name))
            continue
        said += [(name, weights.step)] if weights.step is not None else []
    checkpoints, wrong, more = _matched(opened, stamps)
    findings += [*wrong, *_backwards(said)]
    return Series(checkpoints=checkpoints, findings=tuple(findings), notes=(*notes, *more))


def _matched(
    opened: list[tuple[int, str, Cleaned]], stamps: Mapping[str, str]
) -> tuple[tuple[Checkpoint, ...], list[Finding], list[str]]:
    wanted = reference([each for _, _, each in opened])
    heads = tied_elsewhere([each for _, _, each in opened], wanted)
    wanted = {name: shape for name, shape in wanted.items() if name not in heads}
    notes = [f"{listed(heads)}: tied to the embedding in some, left out of all"] if heads else []
    notes += common_notes([each for _, _, each in opened])
    findings: list[Finding] = []
    checkpoints: list[Checkpoint] = []
    for step, name, have in opened:
        try:
            tensors, own = matched(have, wanted, ignored=heads)
        except UnreadableError as error:
            findings.append(error.finding(name))
            continue
        notes += [f"'{name}': {note}" for note in own]
        checkpoints.append(FileCheckpoint(step=step, name=name, stored=tensors, stamp=stamps[name]))
    return tuple(checkpoints), findings, notes


def _backwards(said: Sequence[tuple[str, int]]) -> list[Finding]:
    """Checkpoints that by their own account are of an earlier step than one before them."""
    findings: list[Finding] = []
    furthest = -1
    for name, step in said:
        if step < furthest:
            detail = f"its own files say step {step}, those before it {furthest}: steps jump back"
            findings.append(Finding(checkpoint=name, kind="off-path", detail=detail))
        furthest = max(furthest, step)
    return findings


def _hub_series(
    by_name: Mapping[str, Revision], order: str | Sequence[str] | None, memory: int
) -> Series:
    """Revisions are opened when read, so what is wrong with them shows then."""
    ordered, findings, notes = _ordered([*by_name], order, listed_by_user=False)
    if not ordered:
        raise _without_steps("revision", [*by_name], order, "revisions such as step1000")
    maps, wanted = OpenMaps(), Wanted()
    windows = Windows(memory=memory, checkpoints=len(ordered))
    checkpoints = [
        LazyCheckpoint(
            step=step, name=name, source=by_name[name], wanted=wanted, maps=maps, windows=windows
        )
        for step, name in ordered
    ]
    return Series(checkpoints=tuple(checkpoints), findings=tuple(findings), notes=tuple(notes))


def _without_steps(
    what: str, names: list[str], order: str | Sequence[str] | None, likely: str
) -> DataError:
    """Nothing that could be ordered."""
    there = listed(names) or "nothing there"
    if order is None:
        do = "name another source, or give the order"
        return DataError(f"no {what} with a step in its name ({there})", expected=likely, do=do)
    return DataError(
        f"no {what} that order {order!r} finds a step for ({there})",
        expected="a regular expression whose first group is the step",
        do="correct the order, or leave it out",
    )
