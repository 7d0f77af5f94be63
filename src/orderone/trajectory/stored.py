"""Tensors that lie in files, and the checkpoint that they make."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.mapped import MappedFile, OpenMaps


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

    def release(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Elements in order from byte ``offset`` of a file: read without a copy."""

    info: TensorInfo
    file: MappedFile
    offset: int

    @property
    def place(self) -> object:
        return (self.file.path, self.offset, self.info)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        return self.file.elements(self.offset, self.info.dtype, start, stop)

    def release(self, start: int, stop: int) -> None:
        size = self.info.dtype.itemsize
        self.file.release(self.offset + start * size, self.offset + stop * size)

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, kw_only=True)
class Strided:
    """A transposed or sliced view as pickles store it: whole rows are copied into order."""

    info: TensorInfo
    file: MappedFile
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
        flat = self.file.elements(self.offset, self.info.dtype, begin, begin + span)
        shape = (last - first, *self.info.shape[1:])
        piece = flat.as_strided(shape, self.strides, flat.storage_offset()).reshape(-1)
        return piece[start - first * width : stop - first * width]

    def release(self, start: int, stop: int) -> None:
        """Nothing: rows of a transposed view share their pages."""

    def close(self) -> None:
        self.file.close()


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
        for piece in self.pieces:
            begin = piece.offsets[0] * width if piece.offsets else 0
            whole = piece.shape[1:] == self.info.shape[1:]
            if whole and begin <= start and stop <= begin + piece.stored.info.numel:
                return piece.stored.read(start - begin, stop - begin)
        rows = torch.empty((last - first, *shape[1:]), dtype=self.info.dtype)
        for piece in self.pieces:
            _place(rows, piece, first, last)
        return rows.reshape(-1)[start - first * width : stop - first * width]

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
    info: TensorInfo, file: MappedFile, offset: int, strides: tuple[int, ...]
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

    def __call__(self, path: Path, maps: OpenMaps) -> Weights: ...
