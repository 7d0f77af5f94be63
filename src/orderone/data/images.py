"""Sets of images by name or by path."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError, DataError, MissingPackageError
from orderone.data.image_batches import ImageBatch, ImageBatches
from orderone.data.image_folder import folder_images, is_image_folder
from orderone.data.image_idx import find_idx, idx_images
from orderone.data.image_set import ImageSet, ImageSplit, Pixels, in_memory, stratified_split

__all__ = ["ImageBatch", "ImageBatches", "ImageSet", "ImageSplit", "images"]

FILES_OF = ("mnist", "fashion-mnist")  # names that mean MNIST-format files in ``folder``
FOLDER_SIZE = 224
LARGEST_SIZE = 8192


def images(
    name_or_path: str | Path, *, size: int | None = None, folder: str | Path | None = None
) -> ImageSet:
    """The set of images that a name or a path stands for.

    ``digits`` needs scikit-learn alone; ``mnist`` and ``fashion-mnist`` are MNIST-format files in
    ``folder``; a path is a folder of such files or of class folders. ``size`` makes every image
    size×size (default: as it is, and 224 for image files).
    """
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        raise ConfigError(
            f"size = {size}", expected=f"1 to {LARGEST_SIZE} pixels", do="choose another size"
        )
    name = str(name_or_path)
    if name == "digits":
        return _resized(_digits(), size)
    if name in FILES_OF:
        return _resized(idx_images(name, _named_folder(name, folder)), size)
    path = Path(name_or_path).expanduser()
    if not path.is_dir():
        raise DataError(
            f"no images '{name}'",
            expected=f"digits, {', '.join(FILES_OF)}, or a folder",
            do="check the name or the path",
        )
    return _from_folder(path, size)


def _from_folder(path: Path, size: int | None) -> ImageSet:
    try:
        if find_idx(path, "train-images-idx3-ubyte") is not None:
            return _resized(idx_images(path.name, path), size)
        if is_image_folder(path):
            return folder_images(path.name, path, size=size or FOLDER_SIZE)
    except OSError as error:
        raise DataError(
            f"'{path}' cannot be read ({error.strerror or error})",
            expected="a folder of images",
            do="check its permissions",
        ) from error
    raise DataError(
        f"'{path}' holds no images",
        expected="MNIST-format files, or CLASS/*.png|jpg with or without train/ above",
        do="check the path",
    )


def _named_folder(name: str, folder: str | Path | None) -> Path:
    path = None if folder is None else Path(folder).expanduser()
    if path is None or not path.is_dir():
        raise DataError(
            f"no folder for '{name}'" if path is None else f"'{path}' is not a folder",
            expected=f"the folder with the four files of {name}",
            do="download train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
            "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz and name their folder",
        )
    return path


def _digits() -> ImageSet:
    """scikit-learn's 1797 digits of 8×8 pixels, whose 17 levels of grey become [0, 1].

    Of every ten images of a class two test and one validates. Writers are not told apart in this
    set, so one writer's digits are on both sides of the split.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError(
            "sklearn", needed_for="the digits", install="scikit-learn"
        ) from error
    pixels, numbers = load_digits(return_X_y=True)
    scaled = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(numbers).long()
    parts = zip(
        ("train", "validation", "test"),
        stratified_split(labels, test=2, validation=1),
        strict=True,
    )
    chosen = {part: (scaled[indices], labels[indices]) for part, indices in parts}
    return in_memory("digits", chosen, classes=tuple(str(digit) for digit in range(10)))


def _resized(source: ImageSet, size: int | None) -> ImageSet:
    if size is None or source.shape[1:] == (size, size):
        return source
    parts: dict[str, tuple[Pixels, Tensor]] = {}
    for part in ("train", "validation", "test"):
        split: ImageSplit = getattr(source, part)
        parts[part] = (_interpolated(split, size), split.labels)
    return in_memory(source.name, parts, classes=source.classes)


def _interpolated(split: ImageSplit, size: int) -> Float[Tensor, "n c s s"]:
    """Bilinear, with antialiasing where it shrinks; float32, so that no level of grey is lost."""
    channels = split.images.shape[1]
    resized = torch.empty(len(split), channels, size, size)
    for block in torch.arange(len(split)).split(1024):
        resized[block] = functional.interpolate(
            split.take(block), size=(size, size), mode="bilinear", antialias=True
        ).clamp(0, 1)
    return resized
