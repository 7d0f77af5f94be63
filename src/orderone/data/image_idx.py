"""MNIST-format files: a big-endian header (magic, counts) and then bytes."""

import gzip
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from orderone.core.errors import DataError
from orderone.data.image_set import ImageSet, in_memory, stratified_split

# No byte of deflate can stand for more than this many bytes: a header that promises more is false.
LARGEST_DEFLATE_RATIO = 1032
CHUNK = 1 << 20
IMAGES_MAGIC = 0x0803  # unsigned bytes, three dimensions
LABELS_MAGIC = 0x0801  # unsigned bytes, one dimension
LARGEST_BYTES = 1 << 32  # a set of this format is held in memory, and a gzipped one can be a bomb

Opened = BufferedReader | gzip.GzipFile


def read_idx(path: Path, *, magic: int) -> UInt8[np.ndarray, "..."]:
    """The array of an idx file, plain or gzipped; its header is checked before any allocation.

    The sizes in the header must give the length of the file (of a gzipped one: what its length can
    hold), and the data must end where they say.
    """
    dimensions = magic & 0xFF
    try:
        with _opened(path) as file:
            shape = _shape(path, file.read(4 + 4 * dimensions), magic=magic)
            size = int(np.prod(shape, dtype=object))
            _check_size(path, shape, size, header=4 + 4 * dimensions)
            data = _read(file, size)
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise _bad(path, f"cannot be read ({error or type(error).__name__})") from error
    if len(data) != size:
        held = "more" if len(data) > size else f"only {len(data)}"
        raise _bad(path, f"promises {size} bytes and holds {held}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def idx_images(name: str, folder: Path) -> ImageSet:
    """The set in a folder of the four MNIST files; a tenth of each training class validates."""
    train, labels = _pair(folder, "train")
    test, test_labels = _pair(folder, "t10k")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"'{folder}' has training images of {_by(train)} and test images of {_by(test)}",
            expected="one size",
            do="get both pairs of files from the same source",
        )
    kept, validation, _ = stratified_split(labels, test=0, validation=1)
    count = int(torch.cat([labels, test_labels, torch.zeros(1, dtype=torch.int64)]).max()) + 1
    return in_memory(
        name,
        {
            "train": (train[kept], labels[kept]),
            "validation": (train[validation], labels[validation]),
            "test": (test, test_labels),
        },
        classes=tuple(str(number) for number in range(count)),
    )


def find_idx(folder: Path, stem: str) -> Path | None:
    """The file ``stem``, under any of the spellings in use, or None."""
    for spelling in (stem, stem.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            path = folder / (spelling + ending)
            if path.is_file():
                return path
    return None


def _pair(folder: Path, part: str) -> tuple[UInt8[Tensor, "n 1 h w"], Int[Tensor, "n"]]:
    pixels_path = _required(folder, f"{part}-images-idx3-ubyte")
    labels_path = _required(folder, f"{part}-labels-idx1-ubyte")
    pixels = read_idx(pixels_path, magic=IMAGES_MAGIC)
    labels = read_idx(labels_path, magic=LABELS_MAGIC)
    if len(pixels) != len(labels):
        raise DataError(
            f"'{pixels_path}' holds {len(pixels)} images and '{labels_path}' {len(labels)} labels",
            expected="as many of one as of the other",
            do="get both files from the same source",
        )
    return torch.from_numpy(pixels.copy())[:, None], torch.from_numpy(labels.astype(np.int64))


def _required(folder: Path, stem: str) -> Path:
    path = find_idx(folder, stem)
    if path is None:
        raise DataError(
            f"'{folder}' has no {stem}",
            expected="the four MNIST-format files, plain or .gz",
            do="put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
            "t10k-labels-idx1-ubyte there",
        )
    return path


def _opened(path: Path) -> Opened:
    return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def _shape(path: Path, header: bytes, *, magic: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * (magic & 0xFF):
        raise _bad(path, f"ends after {len(header)} bytes of header")
    numbers = np.frombuffer(header, dtype=">u4").tolist()
    if numbers[0] != magic:
        raise _bad(path, f"begins with 0x{numbers[0]:08x}, not 0x{magic:08x}")
    if len(numbers) > 2 and 0 in numbers[2:]:
        raise _bad(path, f"says images of {numbers[2]}×{numbers[3]} pixels")
    return tuple(numbers[1:])


def _check_size(path: Path, shape: tuple[int, ...], size: int, *, header: int) -> None:
    length = path.stat().st_size
    told = "×".join(str(side) for side in shape)
    if size > LARGEST_BYTES:
        raise _bad(path, f"promises {told} bytes, over {LARGEST_BYTES}")
    if path.suffix == ".gz":
        if size + header > length * LARGEST_DEFLATE_RATIO:
            raise _bad(path, f"promises {told} bytes, more than {length} compressed ones can hold")
    elif size + header != length:
        raise _bad(path, f"promises {told} = {size} bytes and holds {length - header}")


def _read(file: Opened, size: int) -> bytearray:
    """Up to ``size`` + 1 bytes, by chunks: memory follows what is there, not what was promised."""
    data = bytearray()
    while len(data) <= size:
        chunk = file.read(min(CHUNK, size + 1 - len(data)))
        if not chunk:
            break
        data += chunk
    return data


def _by(images: Tensor) -> str:
    return f"{images.shape[-2]}×{images.shape[-1]}"


def _bad(path: Path, what: str) -> DataError:
    return DataError(f"'{path}' {what}", expected="a whole idx file", do="get the file again")
