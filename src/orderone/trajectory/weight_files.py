"""Which files of a checkpoint are its weights, by their names alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderone.trajectory.byte_files import Files
from orderone.trajectory.dcp_files import distributed
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.mapped import OpenMaps, unreadable
from orderone.trajectory.npz_files import npz
from orderone.trajectory.ranked_files import ranked
from orderone.trajectory.safetensors_files import listed, parsed, safetensors, sharded
from orderone.trajectory.stored import Reader, Stored, Weights
from orderone.trajectory.tensorflow_files import tensorflow
from orderone.trajectory.torch_files import torch_file

# Beside the weights lie the optimizer, schedules, generators and the trainer's own state.
_NOT_WEIGHTS = re.compile(
    r"(?:optim|scheduler|rng|random_state|generator|train(?:ing|er)?_(?:args|state)|scaler|state\b"
    r"|dataloader|zero_pp_rank|zero_to_fp32|.*optim_states|data_position|sampler|events\.out).*"
)
_MAIN = re.compile(
    r"(?:model|pytorch_model|weights|consolidated|adapter_model|tf_model|params)\b.*"
)
_SHARD = re.compile(r"(.*)[-_.](\d{1,6})-of-(\d{1,6})")
_RANKED = re.compile(r"shard-(\d+)-model-\d+-of-\d+\.safetensors")  # DCP's safetensors form
READERS: dict[str, Reader] = {
    ".safetensors": safetensors,
    ".bin": torch_file,
    ".pt": torch_file,
    ".pth": torch_file,
    ".ckpt": torch_file,
    ".npz": npz,
}
_TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The files to read: an index alone, a set of shards, or one file."""

    files: tuple[str, ...]
    reader: Reader
    indexed: bool = False
    shards: int | None = None  # how many there must be, where the names say so
    ranked: bool = False  # each file has its rank's part of every tensor
    beside: tuple[str, ...] = ()  # files that these may point to


def choose(names: Sequence[str]) -> Choice | None:
    """The weights among the files of one checkpoint; the safest and quickest format first."""
    names = sorted(name for name in names if not _NOT_WEIGHTS.match(name.lower()))
    ranked = tuple(name for name in names if _RANKED.fullmatch(name))
    if ranked:
        return Choice(files=ranked, reader=safetensors, ranked=True)
    for suffix, reader in READERS.items():
        if suffix == ".bin" and ".metadata" in names:
            beside = tuple(name for name in names if name.endswith(".distcp"))
            return Choice(files=(".metadata",), reader=distributed, beside=beside)
        indexes = [name for name in names if name.endswith(f"{suffix}.index.json")]
        if indexes:
            return Choice(files=(_main(indexes),), reader=reader, indexed=True)
        files = [name for name in names if Path(name).suffix == suffix]
        if files:
            return _choose_file(files, reader)
    indexes = [name for name in names if name.endswith(".index")]
    if indexes:
        data = indexes[0].removesuffix("index") + "data-"
        beside = tuple(name for name in names if name.startswith(data))
        return Choice(files=(indexes[0],), reader=tensorflow, beside=beside)
    return None


def stem(name: str) -> str | None:
    """The checkpoint that a file is of, when one folder holds many; None: no weights."""
    if _NOT_WEIGHTS.match(name.lower()) or name.startswith(".") or _RANKED.fullmatch(name):
        return None
    if Path(name).suffix == ".index":
        return Path(name).stem
    if Path(name).suffix not in READERS:
        bare = re.sub(r"\.(?:safetensors|bin|pt)\.index\.json$", "", name)
        return bare if bare != name else None
    bare = Path(name).stem
    shard = _SHARD.fullmatch(bare)
    return shard[1] if shard else bare


def open_weights(folder: Path, names: Sequence[str], files: Files) -> Weights:
    """The weights among the files ``names`` of ``folder``."""
    choice = choose(names)
    if choice is None:
        what = listed(sorted(names)) if names else "nothing"
        raise UnreadableError("unreadable", f"no weights in '{folder.name}', but {what}")
    weights = _read(folder, choice, files)
    step = _trainer_step(folder) if _TRAINER_STATE in names else weights.step
    return Weights(tensors=weights.tensors, step=step)


def open_folder(folder: Path, maps: OpenMaps) -> Weights:
    """The weights in a checkpoint's folder, or in the one folder inside it that has some."""
    names, folders = contents(folder)
    if choose(names) is None:
        inside = [f for f in folders if not _NOT_WEIGHTS.match(f.lower())]
        having = [f for f in inside if choose(contents(folder / f)[0]) is not None]
        if len(having) == 1:
            return open_weights(folder / having[0], contents(folder / having[0])[0], maps)
    return open_weights(folder, names, maps)


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the files and of the folders inside."""
    try:
        entries = sorted(folder.iterdir())
        files = [entry.name for entry in entries if not entry.is_dir()]
        return files, [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise unreadable(folder, error) from error


def _choose_file(files: list[str], reader: Reader) -> Choice:
    shards = [(name, _SHARD.fullmatch(Path(name).stem)) for name in files]
    parts = [(name, match) for name, match in shards if match]
    if parts and len(parts) == len(files):
        of = max(int(match[3]) for _, match in parts)
        return Choice(files=tuple(name for name, _ in parts), reader=reader, shards=of)
    return Choice(files=(_main(files),), reader=reader)


def _main(names: list[str]) -> str:
    """The one called as weights are; the shortest such name, so not 'model_ema' beside 'model'."""
    called = [name for name in names if _MAIN.match(name)] or names
    return min(called, key=lambda name: (len(name), name))


def _read(folder: Path, choice: Choice, files: Files) -> Weights:
    paths = [folder / name for name in choice.files]
    if choice.ranked:
        _check_ranks(folder, choice.files)
        return ranked(paths, files)
    if choice.indexed:
        return sharded(paths[0], files, reader=choice.reader)
    if choice.shards is not None and len(paths) != choice.shards:
        raise UnreadableError(
            "missing-shard", f"'{folder.name}' has {len(paths)} of {choice.shards} shards"
        )
    if len(paths) == 1:
        return choice.reader(paths[0], files)
    tensors: dict[str, Stored] = {}
    for path in paths:
        tensors.update(choice.reader(path, files).tensors)
    return Weights(tensors=tensors)


def _check_ranks(folder: Path, names: Sequence[str]) -> None:
    there = {int(match[1]) for match in map(_RANKED.fullmatch, names) if match}
    lacking = sorted(set(range(1, max(there) + 1)) - there) if max(there) < 1 << 20 else [0]
    if lacking:
        raise UnreadableError(
            "missing-shard", f"'{folder.name}' lacks the shard of rank {lacking[0]}"
        )


def _trainer_step(folder: Path) -> int | None:
    """The step that transformers' Trainer noted beside the weights."""
    try:
        state = parsed(folder / _TRAINER_STATE, (folder / _TRAINER_STATE).read_bytes())
    except (OSError, UnreadableError):
        return None  # a note beside the weights; they are whole without it
    step = state.get("global_step")
    return step if type(step) is int and 0 <= step < 1 << 63 else None
