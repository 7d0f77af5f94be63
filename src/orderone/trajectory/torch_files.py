"""``torch.save``'s two containers, zip and the one before 1.6, with the tensors left in place.

Nothing runs and nothing is copied: what ``torch.load(weights_only=True, mmap=True)`` promises,
also for the old container and for a zip inside a larger file (distributed checkpoints), where
torch must read everything.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.mapped import MappedFile, OpenMaps
from orderone.trajectory.pickled import PickledTensor, Storage, unpickled
from orderone.trajectory.state_dicts import saved_step, state_dict
from orderone.trajectory.stored import Stored, Weights, strided

_MAGIC = 0x1950A86A20F9469CFC6C  # what the old container begins with
_ZIP = b"PK\x03\x04"
_LOCAL_HEADER = 30


@dataclass(frozen=True)
class Saved:
    """The unpickled object, and where in the file each storage's bytes begin and end."""

    value: object
    places: Mapping[str, tuple[int, int]]


def torch_file(path: Path, maps: OpenMaps) -> Weights:
    """The weights in a ``.pt``, ``.bin``, ``.pth`` or ``.ckpt`` file."""
    file = MappedFile(path, maps)
    saved = saved_object(file, 0, file.size)
    tensors = state_dict(path, saved.value)
    stored: dict[str, Stored] = {
        name: in_file(file, tensor, saved.places) for name, tensor in tensors.items()
    }
    return Weights(tensors=stored, step=saved_step(saved.value))


def saved_object(file: MappedFile, first: int, last: int) -> Saved:
    """What ``torch.save`` wrote to bytes first..last of a file."""
    begin = bytes(file.bytes_at(first, min(first + 4, last)))
    if begin == _ZIP:
        return _from_zip(file, first, last)
    if len(begin) < 4:
        raise UnreadableError("truncated", f"'{file.path.name}' has {file.size} bytes")
    if begin[0] != 0x80:
        raise UnreadableError("unreadable", f"'{file.path.name}' is not written by torch.save")
    return _from_old(file, first, last)


def in_file(
    file: MappedFile, tensor: PickledTensor, places: Mapping[str, tuple[int, int]]
) -> Stored:
    """The tensor in its place, which its storage must contain."""
    if tensor.storage.key not in places:
        raise UnreadableError(
            "truncated", f"'{file.path.name}' lacks storage '{tensor.storage.key:.40}'"
        )
    first, last = places[tensor.storage.key]
    size = tensor.info.dtype.itemsize
    begin = first + tensor.offset * size
    if tensor.info.numel and begin + _span(tensor.info, tensor.strides) * size > last:
        raise UnreadableError(
            "shape",
            f"'{file.path.name}' holds a tensor of {tensor.info.shape} in {last - first} bytes",
        )
    return strided(tensor.info, file, begin, tensor.strides)


def _span(info: TensorInfo, strides: tuple[int, ...]) -> int:
    """Elements from the tensor's first to its last."""
    return 1 + sum((size - 1) * step for size, step in zip(info.shape, strides, strict=True))


class _View(BufferedIOBase):
    """A stretch of a mapped file as a file of its own, for the zip reader."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def read(self, size: int | None = -1, /) -> bytes:
        end = len(self._content) if size is None or size < 0 else self._at + size
        piece = bytes(self._content[self._at : end])
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = (0, self._at, len(self._content))[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def members(file: MappedFile, first: int, last: int) -> dict[str, tuple[int, int, bool]]:
    """A zip's members: where their bytes begin and end, and whether they are plain."""
    content = file.bytes_at(first, last)
    try:
        with zipfile.ZipFile(_View(content)) as archive:
            infos = archive.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableError(
            "truncated", f"'{file.path.name}' is a zip cut short: {error}"
        ) from error
    except Exception as error:  # the directory's fields can make the reader raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableError(
            "unreadable", f"'{file.path.name}' is a broken zip ({reason})"
        ) from error
    found: dict[str, tuple[int, int, bool]] = {}
    for info in infos:
        at = info.header_offset
        local = bytes(content[at : at + _LOCAL_HEADER]) if at >= 0 else b""
        if len(local) < _LOCAL_HEADER or local[:4] != _ZIP:
            raise UnreadableError("truncated", f"'{file.path.name}' lacks '{info.filename:.80}'")
        # The two lengths stand in the local header too, and there they count: torch pads by them.
        lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        begin = at + _LOCAL_HEADER + lengths
        if begin + info.compress_size > len(content):
            raise UnreadableError("truncated", f"'{file.path.name}' cuts '{info.filename:.80}'")
        plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        found[info.filename] = (first + begin, first + begin + info.compress_size, plain)
    return found


def _from_zip(file: MappedFile, first: int, last: int) -> Saved:
    found = members(file, first, last)
    folder = next((name[: -len("data.pkl")] for name in found if name.endswith("/data.pkl")), None)
    if folder is None:
        raise UnreadableError("unreadable", f"'{file.path.name}' is a zip, but none of torch.save")
    order = found.get(f"{folder}byteorder")
    if order is not None and bytes(file.bytes_at(*order[:2])) != b"little":
        raise UnreadableError("unreadable", f"'{file.path.name}' is written big end first")
    if not all(plain for _, _, plain in found.values()):
        raise UnreadableError("unreadable", f"'{file.path.name}' has compressed members")
    begin, end, _ = found[f"{folder}data.pkl"]
    value, _ = unpickled(file.path, file.bytes_at(begin, end))
    data = f"{folder}data/"
    places = {
        name[len(data) :]: (begin, end)
        for name, (begin, end, _) in found.items()
        if name.startswith(data)
    }
    return Saved(value, places)


def _from_old(file: MappedFile, first: int, last: int) -> Saved:
    """Five pickles (magic, version, system, object, storage keys), then storages, size first."""
    content = file.bytes_at(first, last)
    magic, at = unpickled(file.path, content)
    if magic != _MAGIC:
        raise UnreadableError("unreadable", f"'{file.path.name}' is a pickle, not of torch.save")
    _, at = unpickled(file.path, content, at=at)
    system, at = unpickled(file.path, content, at=at)
    if not isinstance(system, dict) or system.get("little_endian") is not True:  # pyright: ignore[reportUnknownMemberType]
        raise UnreadableError("unreadable", f"'{file.path.name}' is not written little end first")
    storages: dict[str, Storage] = {}
    value, at = unpickled(file.path, content, at=at, storages=storages)
    keys, at = unpickled(file.path, content, at=at)
    places: dict[str, tuple[int, int]] = {}
    for key in keys if isinstance(keys, list) else []:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(key, str) or key not in storages:
            raise UnreadableError("unreadable", f"'{file.path.name}' lists storage {key!r:.40}")
        numel = int.from_bytes(content[at : at + 8], "little")
        end = at + 8 + numel * storages[key].dtype.itemsize
        if end > len(content):
            raise UnreadableError("truncated", f"'{file.path.name}' cuts storage '{key:.40}'")
        places[key] = (first + at + 8, first + end)
        at = end
    return Saved(value, places)
