"""safetensors, single and sharded: our own parser of the header.

A file is 8 bytes of header length (little endian), a JSON object {name: {dtype, shape,
data_offsets}}, and the tensors' bytes. Length, JSON, types, shapes and offsets are all checked
before one of them is used; the tensors must cover the data exactly, without holes or overlaps, as
the format demands. The largest header read here is 16 MiB, about 100,000 tensors.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import torch

from orderone.trajectory.byte_files import ByteFile, Files
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.stored import Dense, Stored, Weights

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 16 << 20
_LONGEST_INDEX = 64 << 20
_STEPS = ("step", "global_step", "iteration")


def safetensors(path: Path, files: Files) -> Weights:
    """The tensors of one file."""
    file = files.file(path)
    header, data = _header(file)
    said = header.pop("__metadata__", {})
    tensors: dict[str, Stored] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        info, (first, last) = _entry(path, name, entry)
        tensors[name] = Dense(info=info, file=file, offset=data + first)
        spans.append((first, last))
    _check_cover(path, spans, file.size - data)
    return Weights(tensors=tensors, step=_step(said), offsets=_offsets(path, said))


def sharded(path: Path, files: Files, *, reader: Any = safetensors) -> Weights:
    """The tensors that the index at ``path`` names, out of its shards."""
    places = index(path, files)
    named = sorted(set(places.values()))
    missing = [shard for shard in named if not files.has(path.parent / shard)]
    if missing:
        raise UnreadableError("missing-shard", f"'{path.name}' names {listed(missing)}: not there")
    shards: dict[str, Weights] = {shard: reader(path.parent / shard, files) for shard in named}
    tensors: dict[str, Stored] = {}
    for name, shard in places.items():
        if name not in shards[shard].tensors:
            raise UnreadableError("missing-shard", f"'{shard}' lacks '{name}' of '{path.name}'")
        tensors[name] = shards[shard].tensors[name]
    return Weights(tensors=tensors)


def index(path: Path, files: Files) -> dict[str, str]:
    """The index's map from tensor to shard; shards are files beside it, nowhere else."""
    file = files.file(path)
    if file.size > _LONGEST_INDEX:
        raise UnreadableError("unreadable", f"'{path.name}' is over {_LONGEST_INDEX} bytes")
    content = bytes(file.bytes_at(0, file.size))
    file.close()
    places: object = parsed(path, content).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UnreadableError("unreadable", f"'{path.name}' has no object 'weight_map'")
    for name, shard in cast("dict[str, object]", places).items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise UnreadableError("unreadable", f"'{path.name}' puts '{name}' in file {shard!r}")
    return cast("dict[str, str]", places)


def parsed(path: Path, content: bytes) -> dict[str, Any]:
    """A JSON object with no key twice and no name that cannot be printed."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise UnreadableError("unreadable", f"'{path.name}' has broken JSON: {reason}") from error
    if not isinstance(value, dict):
        raise UnreadableError("unreadable", f"'{path.name}' has JSON that is no object")
    return cast("dict[str, Any]", value)


def listed(names: list[str], most: int = 3) -> str:
    """The first few names in quotes, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _header(file: ByteFile) -> tuple[dict[str, Any], int]:
    path = file.path
    if file.size < 8:
        raise UnreadableError("truncated", f"'{path.name}' has {file.size} bytes, not even 8")
    length = int.from_bytes(file.bytes_at(0, 8), "little")
    if length > file.size - 8:
        raise UnreadableError(
            "truncated", f"'{path.name}' has {file.size} bytes, its header alone promises {length}"
        )
    if not 2 <= length <= _LONGEST_HEADER:
        raise UnreadableError("unreadable", f"'{path.name}' has a header of {length} bytes")
    return parsed(path, bytes(file.bytes_at(8, 8 + length))), 8 + length


def _entry(path: Path, name: str, entry: object) -> tuple[TensorInfo, tuple[int, int]]:
    if not isinstance(entry, dict):
        raise UnreadableError("unreadable", f"'{path.name}': '{name}' is {entry!r:.80}")
    said = cast("dict[str, object]", entry)
    dtype = DTYPES.get(str(said.get("dtype")))
    if dtype is None:
        raise UnreadableError(
            "unreadable", f"'{path.name}': '{name}' has unknown dtype {said.get('dtype')!r:.80}"
        )
    shape = naturals(said.get("shape"))
    span = naturals(said.get("data_offsets"))
    if shape is None or span is None or len(span) != 2:
        raise UnreadableError("unreadable", f"'{path.name}': '{name}' has {entry!r:.120}")
    nbytes = prod(shape) * dtype.itemsize
    if span[1] - span[0] != nbytes:
        raise UnreadableError(
            "shape",
            f"'{path.name}': '{name}' of {shape_text(shape)} needs {nbytes} bytes, "
            f"its offsets give {span[1] - span[0]}",
        )
    return TensorInfo(shape=shape, dtype=dtype), (span[0], span[1])


def _check_cover(path: Path, spans: list[tuple[int, int]], size: int) -> None:
    """Tensors one after the other up to the end: no hole, no overlap, no byte over."""
    end = 0
    for first, last in sorted(spans):
        if first != end:
            what = "overlap" if first < end else "leave a hole"
            raise UnreadableError(
                "unreadable", f"'{path.name}': its tensors {what} at byte {first}"
            )
        end = last
    if end > size:
        raise UnreadableError(
            "truncated", f"'{path.name}' has {size} bytes of tensors, its header promises {end}"
        )
    if end < size:
        raise UnreadableError("unreadable", f"'{path.name}' has {size - end} bytes after its end")


def naturals(value: object, most: int = 64) -> tuple[int, ...] | None:
    """A list of a few integers from 0 to 2⁶³ − 1, else None."""
    if not isinstance(value, (list, tuple)) or len(cast("list[object]", value)) > most:
        return None
    items = cast("list[object]", value)
    ok = all(type(item) is int and 0 <= item < 1 << 63 for item in items)
    return tuple(cast("list[int]", items)) if ok else None


def shape_text(shape: tuple[int, ...]) -> str:
    """3×4, or 'a scalar'."""
    return "×".join(map(str, shape)) if shape else "a scalar"


def _step(said: object) -> int | None:
    """The step in the file's own metadata, where a trainer wrote one."""
    if not isinstance(said, dict):
        return None
    texts = [cast("dict[str, object]", said).get(key) for key in _STEPS]
    return next(
        (int(t) for t in texts if isinstance(t, str) and t.isdecimal() and len(t) < 19), None
    )


def _offsets(path: Path, said: object) -> dict[str, tuple[int, ...]]:
    """Where a rank's shards begin, as DCP notes it in its safetensors form."""
    text = cast("dict[str, object]", said).get("DCP_SHARDING_INFO") if _is_dict(said) else None
    if not isinstance(text, str):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for name, entry in parsed(path, text.encode(errors="replace")).items():
        offsets = naturals(entry.get("saved_offsets")) if _is_dict(entry) else None
        if offsets is None:
            raise UnreadableError("unreadable", f"'{path.name}' does not say where '{name}' begins")
        found[name] = offsets
    return found


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_plain(name: str) -> bool:
    """A file's name such as every system allows, without a folder."""
    fits = name.isprintable() and 0 < len(name.encode()) < 256
    return fits and name not in (".", "..") and not set(name) & set("/\\")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    for key in result:
        key.encode("utf-8")  # a lone surrogate could never be printed
        if len(key) > 4096:
            raise ValueError("a name of over 4096 characters")
    return result
