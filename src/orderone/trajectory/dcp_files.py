"""PyTorch's distributed checkpoints (DCP): `.metadata` and `.distcp` files, read in one process.

``torch.distributed.checkpoint.FileSystemReader`` unpickles ``.metadata`` without restriction, which
could run anything; here it is read by our own unpickler, and only records come out of it. Each
chunk is a ``torch.save`` of its own inside a file, of which we see the bytes in place.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from orderone.trajectory.byte_files import ByteFile, Files, Stretch
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.pickled import PickledTensor, unpickled
from orderone.trajectory.safetensors_files import listed, naturals
from orderone.trajectory.state_dicts import is_state_name
from orderone.trajectory.stored import Late, Piece, Pieced, Stored, Weights
from orderone.trajectory.torch_files import in_file, saved_object


class _Fields:
    """Any record of the metadata: what was to be its state."""

    state: object = None  # stays so where nothing was to be set

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state

    def field(self, name: str) -> object:
        return cast("dict[str, object]", self.state).get(name) if _is_dict(self.state) else None


_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS: Mapping[str, Any] = {
    **{
        f"{_METADATA}.{name}": _Fields
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    },
    "torch.distributed.checkpoint.filesystem._StorageInfo": _Fields,
    "pathlib.PosixPath": _Fields,
    "pathlib._local.PosixPath": _Fields,
    "pathlib.WindowsPath": _Fields,
    "pathlib._local.WindowsPath": _Fields,
}


def distributed(path: Path, files: Files) -> Weights:
    """The weights of the checkpoint whose ``.metadata`` file is ``path``."""
    file = files.file(path)
    metadata, _ = unpickled(path, Stretch(file, 0, file.size), names=_RECORDS)
    file.close()
    if not isinstance(metadata, _Fields):
        raise UnreadableError("unreadable", f"'{path.name}' is no DCP metadata")
    entries, storage = metadata.field("state_dict_metadata"), metadata.field("storage_data")
    if not _is_dict(entries) or not _is_dict(storage):
        raise UnreadableError("unreadable", f"'{path.name}' lacks its tables")
    chunks = _chunk_places(path, cast("dict[object, object]", storage))
    held = _files(path, chunks, files)
    tensors: dict[str, Stored] = {}
    for name, entry in cast("dict[object, object]", entries).items():
        is_tensor = isinstance(entry, _Fields) and entry.field("chunks") is not None
        if isinstance(name, str) and is_tensor and not is_state_name(name):
            tensors[name] = _tensor(path, name, cast("_Fields", entry), chunks, held)
    return Weights(tensors=tensors)


Place = tuple[str, int, int]  # file, first byte, length


def _chunk_places(
    path: Path, storage: dict[object, object]
) -> dict[tuple[str, tuple[int, ...]], Place]:
    """Where the chunk of a tensor that begins at some offsets is kept."""
    found: dict[tuple[str, tuple[int, ...]], Place] = {}
    for key, value in storage.items():
        if not isinstance(key, _Fields) or not isinstance(value, _Fields):
            raise UnreadableError("unreadable", f"'{path.name}' has an entry that is none")
        name, offsets = key.field("fqn"), naturals(key.field("offset"))
        relative = value.field("relative_path")
        place = naturals((value.field("offset"), value.field("length")))
        if not isinstance(name, str) or not isinstance(relative, str) or place is None:
            raise UnreadableError("unreadable", f"'{path.name}' has an entry without a place")
        if set(relative) & set("/\\\0") or relative in ("", ".", ".."):
            raise UnreadableError("unreadable", f"'{path.name}' points to file {relative!r:.80}")
        if value.field("transform_descriptors"):
            raise UnreadableError("unreadable", f"'{path.name}' has compressed chunks")
        found[name, offsets or ()] = (relative, place[0], place[1])
    return found


def _files(
    path: Path, chunks: Mapping[tuple[str, tuple[int, ...]], Place], files: Files
) -> dict[str, ByteFile]:
    names = sorted({file for (name, _), (file, _, _) in chunks.items() if not is_state_name(name)})
    missing = [name for name in names if not files.has(path.parent / name)]
    if missing:
        raise UnreadableError("missing-shard", f"'{path.name}' names {listed(missing)}: not there")
    return {name: files.file(path.parent / name) for name in names}


def _tensor(
    path: Path,
    name: str,
    entry: _Fields,
    places: Mapping[tuple[str, tuple[int, ...]], Place],
    files: Mapping[str, ByteFile],
) -> Stored:
    properties, shape = entry.field("properties"), naturals(entry.field("size"))
    state = properties.state if isinstance(properties, _Fields) else None
    dtype = cast("tuple[object, ...]", state)[0] if isinstance(state, tuple) and state else None
    chunks = entry.field("chunks")
    if not isinstance(dtype, torch.dtype) or shape is None or not isinstance(chunks, list):
        raise UnreadableError("unreadable", f"'{path.name}': '{name}' has no shape or dtype")
    pieces: list[Piece] = []
    for chunk in cast("list[object]", chunks):
        begins, reaches = (
            (chunk.field("offsets"), chunk.field("sizes")) if isinstance(chunk, _Fields) else (0, 0)
        )
        offsets, sizes = naturals(begins), naturals(reaches)
        place = places.get((name, offsets or ()))
        if offsets is None or sizes is None or place is None:
            raise UnreadableError("missing-shard", f"'{path.name}': a chunk of '{name}' is nowhere")
        if not _inside(shape, offsets, sizes):
            raise UnreadableError("shape", f"'{path.name}': a chunk of '{name}' lies outside it")
        info = TensorInfo(shape=sizes, dtype=dtype)
        pieces.append(Piece(offsets=offsets, stored=_chunk(info, files[place[0]], *place[1:])))
    info = TensorInfo(shape=shape, dtype=dtype)
    if sum(piece.stored.info.numel for piece in pieces) != info.numel:
        raise UnreadableError("shape", f"'{path.name}': chunks of '{name}' do not make it up")
    return Pieced(info=info, pieces=tuple(pieces))


def _inside(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    same = len(shape) == len(offsets) == len(sizes)
    return same and all(o + s <= n for n, o, s in zip(shape, offsets, sizes, strict=True))


def _chunk(info: TensorInfo, file: ByteFile, offset: int, length: int) -> Late:
    """A chunk whose own little header is read when it is first needed."""
    file.check(offset, offset + length)
    return Late(info, file, partial(_saved_chunk, info, file, offset, length), place=offset)


def _saved_chunk(info: TensorInfo, file: ByteFile, offset: int, length: int) -> Stored:
    saved = saved_object(file, offset, offset + length)
    if not isinstance(saved.value, PickledTensor) or saved.value.info != info:
        raise UnreadableError("shape", f"'{file.path.name}' has another chunk than told")
    return in_file(file, saved.value, saved.places)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)
