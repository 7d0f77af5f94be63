"""What is done to a batch of images before it is learned from.

[DYZ23] §II.1 trains on ImageNet with timm's recipe: RandAugment (n 2, m 9, mstd ½, inc 1), Mixup
0.8 or CutMix 1.0 (half the batches each), random erasing of 25 % of the images by noise per pixel,
and label smoothing 0.1. ``AUGMENTATIONS["paper"]`` is that; every part can be switched by itself.

kornia's own RandAugment is another algorithm than timm's, so only its image functions are used
here, and the draws are ours:

- kornia draws n distinct operations for the whole batch; timm (and we) for each image, with
  replacement, and then skips each with probability ½.
- kornia has no mstd: every image gets severity m/30. Here M ~ N(m, mstd²), cut to [0, 10].
- kornia has no inc: its colour operations run from "less" to "more" through "unchanged" in the
  middle, so that m = 9 of 30 is a weak one. With inc 1 a higher M is always further from the image.
- kornia's Mixup draws λ uniformly; the recipe's is Beta(α, α), one λ a batch.

Differs from timm: levels of grey are not rounded to 8 bits between operations, warps are bilinear
(timm: bilinear or bicubic at random), an image is mixed with its neighbour in the batch (timm: with
its mirror place), and an erased rectangle that would not fit is cut to the image (timm: drawn
again).

Every draw comes from the generator passed in, on the CPU; the process's own generators are neither
read nor moved, so that a batch is a function of its seed alone.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError
from orderone.data.image_operations import OPERATIONS, TOP

Batch = Float[Tensor, "b c h w"]
Soft = Float[Tensor, "b k"]

APPLIED = 0.5  # a chosen operation is carried out with this probability
ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """One recipe; the defaults do nothing, and 0 switches a part off."""

    operations: int = 0  # RandAugment's n
    magnitude: float = 9.0  # its m, 0 to 10
    magnitude_std: float = 0.5  # its mstd
    mixup: float = 0.0  # α of Mixup's Beta(α, α)
    cutmix: float = 0.0  # α of CutMix's
    erasing: float = 0.0  # share of images with a rectangle erased
    smoothing: float = 0.0  # of the labels
    shift: int = 0  # pixels of random translation, black outside
    flip: float = 0.0  # share of images mirrored

    def __post_init__(self) -> None:
        bounds = {"magnitude": TOP, "erasing": 1.0, "smoothing": 1.0, "flip": 1.0}
        for field in fields(self):
            value: float = getattr(self, field.name)
            top = bounds.get(field.name, 1e6)
            if not 0 <= value <= top:
                raise ConfigError(
                    f"augmentation {field.name} = {value}",
                    expected=f"a number from 0 to {top:g}",
                    do="change it",
                )

    @property
    def soft(self) -> bool:
        """Whether targets are probabilities rather than class numbers."""
        return self.mixup > 0 or self.cutmix > 0 or self.smoothing > 0


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "light": Augmentation(shift=1),
    "paper": Augmentation(operations=2, mixup=0.8, cutmix=1.0, erasing=0.25, smoothing=0.1),
}


def augmentation(name: str) -> Augmentation:
    """The recipe of a name: ``none``, ``light`` (a shift, for tiny sets) or ``paper``."""
    if name not in AUGMENTATIONS:
        raise ConfigError(
            f"augmentation '{name}'", expected=f"one of {', '.join(AUGMENTATIONS)}", do="choose one"
        )
    return AUGMENTATIONS[name]


def augmented(
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b"],
    *,
    recipe: Augmentation,
    classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    rng: np.random.Generator,
) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, "b"] | Float[Tensor, "b k"]]:
    """Images in [0, 1] and class numbers → normalised images and targets.

    In timm's order: operations on pixels, normalisation, erasing (by noise of the normalised
    images' own size), mixing.
    """
    if recipe.flip:
        images = flipped(images, share=recipe.flip, rng=rng)
    if recipe.shift:
        images = shifted(images, pixels=recipe.shift, rng=rng)
    if recipe.operations:
        images = randaugmented(images, recipe=recipe, fill=mean, rng=rng)
    images = normalised(images, mean=mean, std=std)
    if recipe.erasing:
        images = erased(images, share=recipe.erasing, rng=rng)
    if not recipe.soft:
        return images, labels
    return mixed(
        images,
        smoothed(labels, classes=classes, smoothing=recipe.smoothing),
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        rng=rng,
    )


def normalised(
    images: Float[Tensor, "b c h w"], *, mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "b c h w"]:
    """(x − mean)/std by channel."""
    shape = (1, -1, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


def flipped(
    images: Float[Tensor, "b c h w"], *, share: float, rng: np.random.Generator
) -> Float[Tensor, "b c h w"]:
    """Each image mirrored left to right with probability ``share``."""
    chosen = torch.from_numpy(rng.random(len(images)) < share)
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


def shifted(
    images: Float[Tensor, "b c h w"], *, pixels: int, rng: np.random.Generator
) -> Float[Tensor, "b c h w"]:
    """Each image moved by −pixels..pixels down and right; what comes in is black."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (pixels,) * 4)
    corners = rng.integers(0, 2 * pixels + 1, size=(len(images), 2)).tolist()
    moved = torch.empty_like(images)
    for place, (top, left) in enumerate(corners):
        moved[place] = padded[place, :, top : top + height, left : left + width]
    return moved


def randaugmented(
    images: Float[Tensor, "b c h w"],
    *,
    recipe: Augmentation,
    fill: tuple[float, ...],
    rng: np.random.Generator,
) -> Float[Tensor, "b c h w"]:
    """timm's RandAugment of images in [0, 1]; what a warp uncovers is ``fill``, by channel.

    All images that drew the same operation go through it together.
    """
    uncovered = images.new_tensor(fill)
    images = images.clone()
    for _ in range(recipe.operations):
        size = len(images)
        drawn = rng.integers(0, len(OPERATIONS), size=size)
        drawn[rng.random(size) >= APPLIED] = -1
        levels = rng.normal(recipe.magnitude, recipe.magnitude_std, size=size).clip(0, TOP)
        signs = np.where(rng.random(size) < 0.5, -1.0, 1.0)
        level, sign = (torch.from_numpy(numbers).to(images) for numbers in (levels, signs))
        for number, operation in enumerate(OPERATIONS):
            here = torch.from_numpy(np.flatnonzero(drawn == number)).to(images.device)
            if len(here):
                images[here] = operation(images[here], level[here], sign[here], uncovered)
    return images


def erased(
    images: Float[Tensor, "b c h w"], *, share: float, rng: np.random.Generator
) -> Float[Tensor, "b c h w"]:
    """With probability ``share`` one rectangle of an image becomes N(0, 1) noise, pixel by pixel.

    Its area is uniform in 2 % to a third of the image, the logarithm of its aspect in ±log 0.3.
    """
    count, channels, height, width = images.shape
    images = images.clone()
    chosen = rng.random(count) < share
    area = rng.uniform(*ERASED_AREA, size=count) * height * width
    aspect = np.exp(rng.uniform(*np.log(ERASED_ASPECT), size=count))
    tall = np.sqrt(area * aspect).round().clip(1, height).astype(int)
    wide = np.sqrt(area / aspect).round().clip(1, width).astype(int)
    top = rng.integers(0, height - tall + 1)
    left = rng.integers(0, width - wide + 1)
    for i in np.flatnonzero(chosen).tolist():
        noise = rng.standard_normal((channels, tall[i], wide[i]), dtype=np.float32)
        rows, columns = slice(top[i], top[i] + tall[i]), slice(left[i], left[i] + wide[i])
        images[i, :, rows, columns] = torch.from_numpy(noise).to(images)
    return images


def smoothed(labels: Int[Tensor, "b"], *, classes: int, smoothing: float) -> Float[Tensor, "b k"]:
    """(1 − ε) on the label's class and ε/classes on every class, that one too."""
    return functional.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def mixed(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b k"],
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
    rng: np.random.Generator,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """The batch mixed with itself by Mixup or CutMix: where both are on, each half the time."""
    use_cutmix = rng.random() < 0.5 if mixup_alpha and cutmix_alpha else cutmix_alpha > 0
    if use_cutmix:
        return cutmix(images, targets, alpha=cutmix_alpha, rng=rng)
    if mixup_alpha:
        return mixup(images, targets, alpha=mixup_alpha, rng=rng)
    return images, targets


def mixup(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b k"],
    *,
    alpha: float,
    rng: np.random.Generator,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """λx + (1 − λ)x' and the same of the targets; λ ~ Beta(α, α), x' the next in the batch."""
    share = float(rng.beta(alpha, alpha))
    return _between(images, share), _between(targets, share)


def cutmix(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b k"],
    *,
    alpha: float,
    rng: np.random.Generator,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """A rectangle of the next image in the batch laid over each; targets by share of pixels.

    Its sides are √(1 − λ) of the image's, λ ~ Beta(α, α), about a uniform centre and cut at the
    border; the targets then get what was really covered, not λ.
    """
    height, width = images.shape[-2:]
    side = float(np.sqrt(1 - rng.beta(alpha, alpha)))
    top, bottom = _interval(height, side, rng)
    left, right = _interval(width, side, rng)
    covered = images.clone()
    covered[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return covered, _between(targets, share)


def _interval(length: int, share: float, rng: np.random.Generator) -> tuple[int, int]:
    half = int(length * share) // 2
    centre = int(rng.integers(0, length))
    return max(0, centre - half), min(length, centre + half)


def _between(values: Shaped[Tensor, "b ..."], share: float) -> Shaped[Tensor, "b ..."]:
    return share * values + (1 - share) * values.roll(1, 0)
