"""Folders of image files, one folder a class, decoded when a batch asks for them."""

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from orderone.core.errors import DataError, MissingPackageError
from orderone.data.image_set import ImageSet, ImageSplit, stratified_split

ENDINGS = frozenset({".png", ".jpg", ".jpeg"})
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
# The whole image is decoded before it is made small: 89 million pixels are 256 MiB.
LARGEST_PIXELS = 89_478_485
# What the models of the field were normalised with; a pass over a large folder costs an epoch.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Files that are images once decoded: [DYZ23] §II.1's evaluation view.

    The shorter side is resized to size·256/224 (bicubic), then the centre size×size is cut out.
    """

    paths: tuple[Path, ...]
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.paths), 3, self.size, self.size

    def __getitem__(self, indices: Int[Tensor, "b"]) -> UInt8[Tensor, "b 3 s s"]:
        paths = [self.paths[index] for index in indices.tolist()]
        if not paths:
            return torch.empty(0, *self.shape[1:], dtype=torch.uint8)
        # Pillow lets go of the interpreter's lock while it decodes; map keeps the order.
        with (
            warnings.catch_warnings(),
            ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1, 16)) as pool,
        ):
            # Filters are the process's, so they are set here and not in the threads.
            warnings.filterwarnings("ignore", message=".*decompression bomb")
            decoded = list(pool.map(partial(decode, size=self.size), paths))
        return torch.stack(decoded)


def decode(path: Path, *, size: int) -> UInt8[Tensor, "3 s s"]:
    """The image of a file in RGB: shorter side to size·256/224, then the centre size×size."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("pillow", needed_for="image files") from error
    try:
        # Pillow warns above LARGEST_PIXELS and refuses above twice that; we refuse at once, from
        # the header, before a pixel is decoded.
        with Image.open(path) as image:
            width, height = image.size
            if width * height > LARGEST_PIXELS:
                raise _unreadable(path, f"{width}×{height} pixels, over {LARGEST_PIXELS}")
            picture = image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # a decoder that is fed rubbish raises anything at all
        raise _unreadable(path, str(error).split("\n")[0] or type(error).__name__) from error
    short = round(size * 256 / 224)
    scale = short / min(width, height)
    shape = max(short, round(width * scale)), max(short, round(height * scale))
    left, top = (shape[0] - size) // 2, (shape[1] - size) // 2
    # One call resizes only what is kept, so an image of one by a million pixels costs no more.
    kept = picture.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(
            left * width / shape[0],
            top * height / shape[1],
            (left + size) * width / shape[0],
            (top + size) * height / shape[1],
        ),
        reducing_gap=None,
    )
    return torch.from_numpy(np.asarray(kept).copy()).permute(2, 0, 1).contiguous()


def folder_images(name: str, root: Path, *, size: int) -> ImageSet:
    """The set of ``root``/CLASS/*.png|jpg, or ``root``/train/CLASS/... beside validation and test.

    A split that has no folder of its own is taken out of train, a tenth of each class.
    """
    folders = _split_folders(root)
    classes = tuple(child.name for child in _class_folders(folders["train"]))
    listed = {part: _listed(folder, classes) for part, folder in folders.items()}
    paths, labels = listed["train"]
    missing = [part for part in ("validation", "test") if part not in listed]
    kept, *taken = stratified_split(
        labels, test=int("test" in missing), validation=int("validation" in missing)
    )
    for part, chosen in zip(("validation", "test"), taken, strict=True):
        if part in missing:
            listed[part] = ([paths[index] for index in chosen.tolist()], labels[chosen])
    listed["train"] = ([paths[index] for index in kept.tolist()], labels[kept])
    splits = {
        part: ImageSplit(images=ImageFiles(paths=tuple(files), size=size), labels=numbers)
        for part, (files, numbers) in listed.items()
    }
    return ImageSet(name=name, classes=classes, mean=IMAGENET_MEAN, std=IMAGENET_STD, **splits)


def is_image_folder(root: Path) -> bool:
    """Whether ``root``, or its train folder, holds class folders with images in them."""
    train = root / "train"
    base = train if train.is_dir() else root
    return any(next(_files(child), None) is not None for child in _class_folders(base))


def _split_folders(root: Path) -> dict[str, Path]:
    if not (root / "train").is_dir():
        return {"train": root}
    found: dict[str, Path] = {}
    for part, names in SPLITS.items():
        for name in names:
            if part not in found and (root / name).is_dir():
                found[part] = root / name
    return found


def _class_folders(folder: Path) -> list[Path]:
    return sorted(
        child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")
    )


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file():
            yield path


def _listed(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], Int[Tensor, "n"]]:
    paths: list[Path] = []
    numbers: list[int] = []
    for child in _class_folders(folder):
        if child.name not in classes:
            raise DataError(
                f"'{child}' is a class that the training folder lacks",
                expected=f"one of {len(classes)} classes ({', '.join(classes[:5])}, ...)",
                do="rename or remove the folder",
            )
        inside = sorted(_files(child))
        if not inside:
            raise DataError(
                f"'{child}' holds no image",
                expected=".png, .jpg or .jpeg files in every class folder",
                do="add images or remove the folder",
            )
        paths += inside
        numbers += [classes.index(child.name)] * len(inside)
    return paths, torch.tensor(numbers, dtype=torch.int64)


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"image '{path}' cannot be used ({why})",
        expected="a PNG or JPEG file of ordinary size",
        do="replace or remove the file",
    )
