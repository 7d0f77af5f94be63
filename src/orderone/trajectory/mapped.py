"""Files seen through memory maps: bounds checked, never copied, never executed.

Plain faults of a map advised as sequential read a cold file as fast as ``read`` does; asking ahead
(MADV_WILLNEED, POSIX_FADV_WILLNEED) walks every page once more and is three times slower.
"""

import mmap
import os
import warnings
from collections import OrderedDict
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from orderone.trajectory.byte_files import ByteFile
from orderone.trajectory.findings import UnreadableError

_PAGE = mmap.PAGESIZE
_MAPS = 256  # each map holds a file descriptor, of which a process commonly has 1,024


class OpenMaps:
    """The files of a series that are mapped now: the least recently read gives way."""

    def __init__(self, most: int = _MAPS) -> None:
        self.most = most
        self._open: OrderedDict[Path, tuple[mmap.mmap, Tensor]] = OrderedDict()

    def file(self, path: Path) -> "MappedFile":
        return MappedFile(path, self)

    def has(self, path: Path) -> bool:
        return path.is_file()

    def get(self, path: Path, size: int) -> tuple[mmap.mmap, Tensor]:
        """The map of ``path`` and its bytes; refuses a file that changed its size meanwhile."""
        held = self._open.get(path)
        if held is None:
            held = _map(path, size)
            self._open[path] = held
            while len(self._open) > self.most:
                self._open.popitem(last=False)  # tensors over it keep it alive by themselves
        self._open.move_to_end(path)
        return held

    def drop(self, path: Path) -> None:
        self._open.pop(path, None)


class MappedFile(ByteFile):
    """One file's bytes as tensors."""

    def __init__(self, path: Path, maps: OpenMaps) -> None:
        self.path = path
        self._maps = maps
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error

    def piece(self, first: int, last: int) -> UInt8[Tensor, " n"]:
        return self._maps.get(self.path, self.size)[1][first:last]

    def bytes_at(self, first: int, last: int) -> memoryview:
        """Bytes first..last, as a view of the file."""
        self.check(first, last)
        if first == last:
            return memoryview(b"")
        return memoryview(self._maps.get(self.path, self.size)[0])[first:last]

    def release(self, first: int, last: int) -> None:
        """The whole pages among these bytes leave this process, not the system's cache."""
        first, last = -(-first // _PAGE) * _PAGE, last // _PAGE * _PAGE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._maps.get(self.path, self.size)[0].madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        self._maps.drop(self.path)


def unreadable(path: Path, error: Exception) -> UnreadableError:
    """An OSError and its like as a finding."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return UnreadableError("unreadable", f"'{path.name}': {reason}")


def drop_page_cache(path: Path) -> None:
    """The system forgets the file's pages, so that the next read is from disk; no privilege."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # pages that are not on disk yet cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _map(path: Path, size: int) -> tuple[mmap.mmap, UInt8[Tensor, " n"]]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise UnreadableError(
                    "truncated", f"'{path.name}' changed from {size} to {found} bytes while read"
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if hasattr(mmap, "MADV_SEQUENTIAL"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "not writable": nobody writes to it
        return mapped, torch.frombuffer(mapped, dtype=torch.uint8)
