"""``torch.save``'s two containers, zip and the one before 1.6, with the tensors left in place.

Nothing runs and nothing is copied: what ``torch.load(weights_only=True, mmap=True)`` promises,
also for the old container and for a zip inside a larger file (distributed checkpoints), where
torch must read everything.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from pathlib import Path

from orderone.trajectory.byte_files import ByteFile, Files, Stretch
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.pickled import PickledTensor, Storage, unpickled
from orderone.trajectory.state_dicts import saved_step, state_dict
from orderone.trajectory.stored import Late, Stored, Weights, contiguous, strided

_MAGIC = 0x1950A86A20F9469CFC6C  # what the old container begins with
_ZIP = b"PK\x03\x04"
_LOCAL_HEADER = 30
_LONGEST_DIRECTORY = 64 << 20


@dataclass(frozen=True)
class Member:
    """One file in a zip: its own header, which is where it begins, and how long its bytes are."""

    name: str
    header: int
    size: int
    plain: bool


@dataclass(frozen=True)
class Saved:
    """The unpickled object, and each storage: a member, or where its bytes begin and end."""

    value: object
    places: Mapping[str, Member | tuple[int, int]]


def torch_file(path: Path, files: Files) -> Weights:
    """The weights in a ``.pt``, ``.bin``, ``.pth`` or ``.ckpt`` file."""
    file = files.file(path)
    saved = saved_object(file, 0, file.size)
    tensors = state_dict(path, saved.value)
    stored: dict[str, Stored] = {
        name: in_file(file, tensor, saved.places) for name, tensor in tensors.items()
    }
    return Weights(tensors=stored, step=saved_step(saved.value))


def saved_object(file: ByteFile, first: int, last: int) -> Saved:
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
    file: ByteFile, tensor: PickledTensor, places: Mapping[str, Member | tuple[int, int]]
) -> Stored:
    """The tensor in its place, which its storage must contain."""
    place = places.get(tensor.storage.key)
    if place is None:
        raise UnreadableError(
            "truncated", f"'{file.path.name}' lacks storage '{tensor.storage.key:.40}'"
        )
    length = place.size if isinstance(place, Member) else place[1] - place[0]
    size = tensor.info.dtype.itemsize
    begin = tensor.offset * size
    if tensor.info.numel and begin + _span(tensor.info, tensor.strides) * size > length:
        raise UnreadableError(
            "shape", f"'{file.path.name}' holds a tensor of {tensor.info.shape} in {length} bytes"
        )
    if not isinstance(place, Member):
        return strided(tensor.info, file, place[0] + begin, tensor.strides)
    if file.near:
        return _in_member(file, tensor, place)
    # A look at every member's header would be a request each, before the first tensor is read.
    look = partial(_in_member, file, tensor, place)
    key = (place.header, begin, tensor.info, tensor.strides)
    plain = begin == 0 and tensor.strides == contiguous(tensor.info.shape)
    return Late(tensor.info, file, look, place=key, begin=place.header if plain else None)


def _in_member(file: ByteFile, tensor: PickledTensor, member: Member) -> Stored:
    begin = span(file, member)[0] + tensor.offset * tensor.info.dtype.itemsize
    return strided(tensor.info, file, begin, tensor.strides)


def _span(info: TensorInfo, strides: tuple[int, ...]) -> int:
    """Elements from the tensor's first to its last."""
    return 1 + sum((size - 1) * step for size, step in zip(info.shape, strides, strict=True))


class _View(BufferedIOBase):
    """A stretch of a file as a file of its own, for the zip reader."""

    def __init__(self, content: Stretch) -> None:
        self._content = content
        self._at = 0

    def read(self, size: int | None = -1, /) -> bytes:
        end = len(self._content)
        if size is not None and size >= 0:
            end = min(end, self._at + size)
        if end - self._at > _LONGEST_DIRECTORY:
            raise OSError(f"a directory of over {_LONGEST_DIRECTORY} bytes")
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


def members(file: ByteFile, first: int, last: int) -> dict[str, Member]:
    """A zip's members; where all is near, their own headers are checked at once."""
    content = Stretch(file, first, last)
    try:
        with zipfile.ZipFile(_View(content)) as archive:
            infos = archive.infolist()
    except UnreadableError:
        raise
    except zipfile.BadZipFile as error:
        raise UnreadableError(
            "truncated", f"'{file.path.name}' is a zip cut short: {error}"
        ) from error
    except Exception as error:  # the directory's fields can make the reader raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableError(
            "unreadable", f"'{file.path.name}' is a broken zip ({reason})"
        ) from error
    found: dict[str, Member] = {}
    for info in infos:
        plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        at, size = info.header_offset, info.compress_size
        if not 0 <= at <= len(content) - _LOCAL_HEADER:
            raise UnreadableError("truncated", f"'{file.path.name}' lacks '{info.filename:.80}'")
        if at + _LOCAL_HEADER + size > len(content):
            raise UnreadableError("truncated", f"'{file.path.name}' cuts '{info.filename:.80}'")
        found[info.filename] = Member(info.filename, first + at, size, plain)
        if file.near and span(file, found[info.filename])[1] > last:
            raise UnreadableError("truncated", f"'{file.path.name}' cuts '{info.filename:.80}'")
    return found


def span(file: ByteFile, member: Member) -> tuple[int, int]:
    """Where the member's bytes begin and end, by its own header."""
    local = bytes(file.bytes_at(member.header, member.header + _LOCAL_HEADER))
    if local[:4] != _ZIP:
        raise UnreadableError("truncated", f"'{file.path.name}' lacks '{member.name:.80}'")
    # The two lengths stand in the local header too, and there they count: torch pads by them.
    lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    begin = member.header + _LOCAL_HEADER + lengths
    file.check(begin, begin + member.size)
    return begin, begin + member.size


def _from_zip(file: ByteFile, first: int, last: int) -> Saved:
    found = members(file, first, last)
    folder = next((name[: -len("data.pkl")] for name in found if name.endswith("/data.pkl")), None)
    if folder is None:
        raise UnreadableError("unreadable", f"'{file.path.name}' is a zip, but none of torch.save")
    order = found.get(f"{folder}byteorder")
    if order is not None and bytes(file.bytes_at(*span(file, order))) != b"little":
        raise UnreadableError("unreadable", f"'{file.path.name}' is written big end first")
    if not all(member.plain for member in found.values()):
        raise UnreadableError("unreadable", f"'{file.path.name}' has compressed members")
    value, _ = unpickled(file.path, Stretch(file, *span(file, found[f"{folder}data.pkl"])))
    data = f"{folder}data/"
    places = {name[len(data) :]: each for name, each in found.items() if name.startswith(data)}
    return Saved(value, places)


def _from_old(file: ByteFile, first: int, last: int) -> Saved:
    """Five pickles (magic, version, system, object, storage keys), then storages, size first."""
    content = Stretch(file, first, last)
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
    places: dict[str, Member | tuple[int, int]] = {}
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
