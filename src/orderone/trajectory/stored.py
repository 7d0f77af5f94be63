"""Tensors that lie in files, and the checkpoint that they make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.byte_files import ByteFile, Files
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError

_PREFACE = 512  # of a member of a zip: its header, its name, and padding


@runtime_checkable
class Stored(Protocol):
    """A tensor somewhere; reading it is checked against what its file really holds."""

    @property
    def info(self) -> TensorInfo: ...

    @property
    def place(self) -> object:
        """Equal for two names of the same bytes: tied tensors."""
        ...

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]: ...

    def expect(self, start: int, stop: int) -> None:
        """These elements are read next: what is far away may be fetched meanwhile."""
        ...

    def release(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Elements in order from byte ``offset`` of a file: read without a copy."""

    info: TensorInfo
    file: ByteFile
    offset: int

    @property
    def place(self) -> object:
        return (self.file.path, self.offset, self.info)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        return self.file.elements(self.offset, self.info.dtype, start, stop)

    def expect(self, start: int, stop: int) -> None:
        size = self.info.dtype.itemsize
        self.file.expect(self.offset + start * size, self.offset + stop * size)

    def release(self, start: int, stop: int) -> None:
        size = self.info.dtype.itemsize
        self.file.release(self.offset + start * size, self.offset + stop * size)

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, kw_only=True)
class Strided:
    """A transposed or sliced view as pickles store it: whole rows are copied into order."""

    info: TensorInfo
    file: ByteFile
    offset: int
    strides: tuple[int, ...]

    @property
    def place(self) -> object:
        return (self.file.path, self.offset, self.info, self.strides)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        if start == stop:
            return torch.empty(0, dtype=self.info.dtype)
        rows = self.info.shape[0]
        width = self.info.numel // rows
        first, last = start // width, -(-stop // width)
        span = 1 + sum(
            (size - 1) * stride
            for size, stride in zip((last - first, *self.info.shape[1:]), self.strides, strict=True)
        )
        begin = first * self.strides[0]
        share, nbytes = self.file.share, span * self.info.dtype.itemsize
        if share is not None and nbytes > share:
            # Every chunk of a transposed view needs nearly all of it, which would be fetched anew.
            raise UnreadableError(
                "unreadable",
                f"'{self.file.path.name}' has a transposed tensor of {nbytes} bytes, of which "
                f"{share} fit into memory: keep the downloads, or allow more memory",
            )
        flat = self.file.elements(self.offset, self.info.dtype, begin, begin + span)
        shape = (last - first, *self.info.shape[1:])
        piece = flat.as_strided(shape, self.strides, flat.storage_offset()).reshape(-1)
        return piece[start - first * width : stop - first * width]

    def expect(self, start: int, stop: int) -> None:
        """Nothing: what is read is not told by the elements alone."""

    def release(self, start: int, stop: int) -> None:
        """Nothing: rows of a transposed view share their pages."""

    def close(self) -> None:
        self.file.close()


class Late:
    """A tensor known by its header alone, whose elements are looked for when first read.

    ``place`` is where it is held; ``begin``, where that is known, is a byte shortly before its
    elements.
    """

    def __init__(
        self,
        info: TensorInfo,
        file: ByteFile,
        look: Callable[[], Stored],
        *,
        place: object,
        begin: int | None = None,
    ) -> None:
        self.info = info
        self.place = (file.path, place)
        self._file, self._look, self._begin = file, look, begin

    @cached_property
    def _found(self) -> Stored:
        return self._look()

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        return self._found.read(start, stop)

    def expect(self, start: int, stop: int) -> None:
        if "_found" in self.__dict__:
            self._found.expect(start, stop)
        elif start == 0 and self._begin is not None:
            last = self._begin + _PREFACE + stop * self.info.dtype.itemsize
            self._file.expect(self._begin, min(last, self._file.size))

    def release(self, start: int, stop: int) -> None:
        self._found.release(start, stop)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a tensor that was saved in shards: where it begins, and its elements."""

    offsets: tuple[int, ...]
    stored: Stored

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.info.shape


@dataclass(frozen=True, kw_only=True)
class Pieced:
    """A tensor put together from pieces; what lies within whole rows of one is not copied."""

    info: TensorInfo
    pieces: tuple[Piece, ...]

    @property
    def place(self) -> object:
        return tuple(piece.stored.place for piece in self.pieces)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        if start == stop:
            return torch.empty(0, dtype=self.info.dtype)
        shape = self.info.shape or (1,)
        width = prod(shape[1:])
        first, last = start // width, -(-stop // width)
        within = self._within(start, stop)
        if within is not None:
            piece, begin = within
            return piece.read(start - begin, stop - begin)
        rows = torch.empty((last - first, *shape[1:]), dtype=self.info.dtype)
        for piece in self.pieces:
            _place(rows, piece, first, last)
        return rows.reshape(-1)[start - first * width : stop - first * width]

    def _within(self, start: int, stop: int) -> tuple[Stored, int] | None:
        """The piece whose whole rows have these elements, and the element that it begins with."""
        width = prod((self.info.shape or (1,))[1:])
        for piece in self.pieces:
            begin = piece.offsets[0] * width if piece.offsets else 0
            whole = piece.shape[1:] == self.info.shape[1:]
            if whole and begin <= start and stop <= begin + piece.stored.info.numel:
                return piece.stored, begin
        return None

    def expect(self, start: int, stop: int) -> None:
        within = self._within(start, stop)
        if within is not None:
            piece, begin = within
            piece.expect(start - begin, stop - begin)

    def release(self, start: int, stop: int) -> None:
        """Nothing: the pieces' pages are left to the system."""

    def close(self) -> None:
        for piece in self.pieces:
            piece.stored.close()


def _place(rows: Tensor, piece: Piece, first: int, last: int) -> None:
    """Copy the piece's rows that fall in first..last of the whole into ``rows``."""
    top = piece.offsets[0]
    begin, end = max(top, first), min(top + piece.shape[0], last)
    if begin >= end:
        return
    width = prod(piece.shape[1:])
    values = piece.stored.read((begin - top) * width, (end - top) * width)
    inner = tuple(
        slice(offset, offset + size)
        for offset, size in zip(piece.offsets[1:], piece.shape[1:], strict=True)
    )
    rows[(slice(begin - first, end - first), *inner)] = values.view(end - begin, *piece.shape[1:])


def strided(
    info: TensorInfo, file: ByteFile, offset: int, strides: tuple[int, ...]
) -> Dense | Strided:
    """The tensor at ``offset``; its last element is checked to lie inside the file."""
    if len(strides) != len(info.shape) or any(stride < 0 for stride in strides):
        raise UnreadableError("unreadable", f"'{file.path.name}' has impossible strides {strides}")
    if info.numel == 0 or strides == contiguous(info.shape):
        return Dense(info=info, file=file, offset=offset)
    if info.nbytes > file.size:
        # An expanded or overlapping view shows more than it stores: any size could be claimed.
        raise UnreadableError(
            "truncated", f"'{file.path.name}' has {file.size} bytes for a tensor of {info.nbytes}"
        )
    if all(
        size == 1 or stride == dense
        for size, stride, dense in zip(info.shape, strides, contiguous(info.shape), strict=True)
    ):
        return Dense(info=info, file=file, offset=offset)
    return Strided(info=info, file=file, offset=offset, strides=strides)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor whose elements lie in order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a format's reader found: tensors as named in the file, and the step it says it is of.

    ``offsets`` tells of a rank's shard where in the whole tensors its own begin.
    """

    tensors: Mapping[str, Stored]
    step: int | None = None
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@runtime_checkable
class Reader(Protocol):
    """Reads the headers of a checkpoint whose weights are at ``path``."""

    def __call__(self, path: Path, files: Files) -> Weights: ...
