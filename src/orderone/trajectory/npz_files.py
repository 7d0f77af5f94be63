"""NumPy's ``.npz``: a zip of ``.npy`` members, none of which may be a pickle.

Plain members are read in place; compressed ones are unpacked as a stream, chunk by chunk.
"""

import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.byte_files import ByteFile, Files
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.safetensors_files import naturals
from orderone.trajectory.state_dicts import is_state_name
from orderone.trajectory.stored import Stored, Weights, contiguous, strided
from orderone.trajectory.torch_files import members, span

_DTYPES: Mapping[str, torch.dtype] = {
    "<f8": torch.float64,
    "<f4": torch.float32,
    "<f2": torch.float16,
    "|V2": torch.bfloat16,  # what NumPy writes for ml_dtypes' bfloat16
    "<i8": torch.int64,
    "<i4": torch.int32,
    "<i2": torch.int16,
    "|i1": torch.int8,
    "|u1": torch.uint8,
    "<u2": torch.uint16,
    "<u4": torch.uint32,
    "<u8": torch.uint64,
    "|b1": torch.bool,
}
_HEADER = 1 << 16
_EXPANSION = 1032  # deflate cannot make more of a byte


def npz(path: Path, files: Files) -> Weights:
    """The arrays of one file."""
    file = files.file(path)
    tensors: dict[str, Stored] = {}
    for member in members(file, 0, file.size).values():
        name, plain = member.name.removesuffix(".npy"), member.plain
        if name == member.name or is_state_name(name):
            continue
        first, last = span(file, member)
        stream = file.bytes_at(first, min(last, first + _HEADER))
        head = bytes(stream) if plain else _Deflated(file, first, last).take(_HEADER)
        info, data, strides = _header(path, name, head)
        if plain:
            if first + data + info.nbytes > last:
                raise UnreadableError("truncated", f"'{path.name}' cuts '{name}'")
            tensors[name] = strided(info, file, first + data, strides)
        else:
            tensors[name] = Compressed(info, file, (first, last), data, strides)
    return Weights(tensors=tensors)


def _header(path: Path, name: str, head: bytes) -> tuple[TensorInfo, int, tuple[int, ...]]:
    """Shape and dtype, where the elements begin, and their strides."""
    stream = BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        said, fortran, dtype = read(stream)
    except Exception as error:  # it is Python's own literal syntax, which can fail in many ways
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableError("unreadable", f"'{path.name}': '{name}' ({reason})") from error
    ours, shape = _DTYPES.get(dtype.str), naturals(said)
    if ours is None or shape is None:
        raise UnreadableError(
            "unreadable", f"'{path.name}': '{name}' has dtype {dtype.str} and shape {said}"
        )
    strides = contiguous(shape)
    if fortran:
        strides = tuple(reversed(contiguous(tuple(reversed(shape)))))
    return TensorInfo(shape=shape, dtype=ours), stream.tell(), strides


class _Deflated:
    """A deflated member as a stream that can only go on."""

    def __init__(self, file: ByteFile, first: int, last: int) -> None:
        self._file, self._at, self._last = file, first, last
        self._machine = zlib.decompressobj(-15)
        self._rest = b""
        self.position = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, fewer at the end."""
        parts: list[bytes] = []
        while count > 0:
            if not self._rest and self._at < self._last:
                end = min(self._at + (1 << 16), self._last)
                self._rest = bytes(self._file.bytes_at(self._at, end))
                self._at = end
            try:
                part = self._machine.decompress(self._rest, count)
            except zlib.error as error:
                name = self._file.path.name
                raise UnreadableError("unreadable", f"'{name}' is broken ({error})") from error
            self._rest = self._machine.unconsumed_tail
            if not part and not self._rest and self._at >= self._last:
                break
            if self._machine.eof and not part:
                break
            parts.append(part)
            count -= len(part)
        taken = b"".join(parts)
        self.position += len(taken)
        return taken


class Compressed:
    """A deflated array, read forwards; going back begins again."""

    def __init__(
        self,
        info: TensorInfo,
        file: ByteFile,
        span: tuple[int, int],
        data: int,
        strides: tuple[int, ...],
    ) -> None:
        if info.nbytes > (span[1] - span[0]) * _EXPANSION:
            raise UnreadableError(
                "truncated", f"'{file.path.name}' cannot hold {info.nbytes} bytes"
            )
        if info.numel and strides != contiguous(info.shape):
            what = "a compressed array in Fortran's order"
            raise UnreadableError("unreadable", f"'{file.path.name}' has {what}")
        self.info = info
        self._file, self._span, self._data = file, span, data
        self._stream: _Deflated | None = None

    @property
    def place(self) -> object:
        return (self._file.path, self._span)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        size = self.info.dtype.itemsize
        begin = self._data + start * size
        if self._stream is None or self._stream.position > begin:
            self._stream = _Deflated(self._file, *self._span)
        while self._stream.position < begin:
            if not self._stream.take(min(1 << 20, begin - self._stream.position)):
                break
        content = bytearray(self._stream.take((stop - start) * size))
        if len(content) != (stop - start) * size:
            raise UnreadableError("truncated", f"'{self._file.path.name}' ends inside an array")
        if not content:
            return torch.empty(0, dtype=self.info.dtype)
        return torch.frombuffer(content, dtype=self.info.dtype)

    def expect(self, start: int, stop: int) -> None:
        """Nothing: it is read as a stream."""

    def release(self, start: int, stop: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self._stream = None
        self._file.close()
