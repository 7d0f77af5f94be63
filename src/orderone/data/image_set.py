"""What every source of images comes to: three splits of pixels and class numbers."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from orderone.core.errors import DataError

Pixels = UInt8[Tensor, "n c h w"] | Float[Tensor, "n c h w"]
Indices = Int[Tensor, "_"]


@runtime_checkable
class Images(Protocol):
    """Images by number: a tensor is one, and so are files that are decoded when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, indices: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSplit:
    """Images N×C×H×W (uint8 in 0..255, or float in [0, 1]) and their class numbers."""

    images: Images
    labels: Int[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Int[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        """The images of these numbers in float32, in [0, 1]."""
        chosen = self.images[indices]
        return chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen.float()


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """A labelled set of images; ``mean`` and ``std`` (by channel, in [0, 1]) normalise it."""

    name: str
    train: ImageSplit
    validation: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


def channel_moments(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation by channel in [0, 1]; a constant channel gets std 1."""
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    count = images[:, 0].numel()
    means: list[float] = []
    stds: list[float] = []
    for channel in range(images.shape[1]):
        # In blocks: a float64 copy of a whole channel would be eight times the set.
        blocks = [block.double() / scale for block in images[:, channel].split(4096)]
        mean = sum(float(block.sum()) for block in blocks) / count
        variance = sum(float((block - mean).square().sum()) for block in blocks) / count
        means.append(mean)
        stds.append(variance**0.5 or 1.0)
    return tuple(means), tuple(stds)


def stratified_split(
    labels: Int[Tensor, "n"], *, test: int, validation: int, out_of: int = 10
) -> tuple[Indices, Indices, Indices]:
    """Numbers of train, validation and test: of every ``out_of`` images of a class, in file order,
    the last ``test`` go to test and the ``validation`` before them to validation.

    No random number is drawn, so the split is the same for ever and on every machine.
    """
    place = np.empty(len(labels), dtype=np.int64)
    classes = labels.numpy()
    for name in np.unique(classes):
        members = np.flatnonzero(classes == name)
        place[members] = np.arange(len(members)) % out_of
    first_test, first_validation = out_of - test, out_of - test - validation
    return (
        torch.from_numpy(np.flatnonzero(place < first_validation)),
        torch.from_numpy(np.flatnonzero((place >= first_validation) & (place < first_test))),
        torch.from_numpy(np.flatnonzero(place >= first_test)),
    )


def in_memory(
    name: str, parts: dict[str, tuple[Pixels, Int[Tensor, "n"]]], *, classes: tuple[str, ...]
) -> ImageSet:
    """The set whose splits are tensors, normalised by the moments of its training images."""
    if not len(parts["train"][1]):
        raise DataError(
            f"'{name}' has no training images", expected="at least one", do="check the files"
        )
    mean, std = channel_moments(parts["train"][0])
    splits = {
        part: ImageSplit(images=pixels, labels=labels) for part, (pixels, labels) in parts.items()
    }
    return ImageSet(name=name, classes=classes, mean=mean, std=std, **splits)
