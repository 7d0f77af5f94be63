"""Files as the formats' readers see them, on this machine's disk or far away."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from orderone.trajectory.findings import UnreadableError


class ByteFile(ABC):
    """One file's bytes as tensors; whatever is asked for is checked to lie inside it."""

    path: Path
    size: int
    near = True
    """Whether looking at a few bytes anywhere costs next to nothing."""
    share: int | None = None
    """Bytes that may be read again and again without being fetched again; None: all."""

    def elements(
        self, offset: int, dtype: torch.dtype, start: int, stop: int
    ) -> Shaped[Tensor, " n"]:
        """Elements start..stop of an array of ``dtype`` that begins at byte ``offset``."""
        first, last = offset + start * dtype.itemsize, offset + stop * dtype.itemsize
        self.check(first, last)
        if first == last:
            return torch.empty(0, dtype=dtype)
        piece = self.piece(first, last)
        # Element types can only be seen at multiples of their size; elsewhere a copy is needed.
        aligned = piece.storage_offset() % dtype.itemsize == 0
        return (piece if aligned else piece.clone()).view(dtype)

    @abstractmethod
    def piece(self, first: int, last: int) -> UInt8[Tensor, " n"]:
        """Bytes first..last, which are there, as a view of what is held."""

    @abstractmethod
    def bytes_at(self, first: int, last: int) -> memoryview:
        """Bytes first..last."""

    def expect(self, first: int, last: int) -> None:  # noqa: B027  # nothing to do where all is near
        """These bytes will be read next."""

    def release(self, first: int, last: int) -> None:  # noqa: B027
        """These bytes are not needed again."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; a later read takes it anew."""

    def check(self, first: int, last: int) -> None:
        """Refuse bytes that the file does not have."""
        if not 0 <= first <= last:
            raise UnreadableError("unreadable", f"'{self.path.name}' has offsets {first}..{last}")
        if last > self.size:
            raise UnreadableError(
                "truncated",
                f"'{self.path.name}' has {self.size} bytes, its header promises {last}",
            )


@runtime_checkable
class Files(Protocol):
    """Where a reader finds the files of a checkpoint, by their paths."""

    def file(self, path: Path) -> ByteFile: ...

    def has(self, path: Path) -> bool: ...


class Stretch:
    """Bytes first..last of a file, of which only the slices that are taken are read."""

    def __init__(self, file: ByteFile, first: int, last: int) -> None:
        file.check(first, last)
        self._file, self._first, self._last = file, first, last

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, step = part.indices(len(self))
        assert step == 1
        return self._file.bytes_at(self._first + start, self._first + max(start, stop))
