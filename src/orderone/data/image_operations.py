"""RandAugment's fifteen operations on batches, each image at a level of its own.

The severities are timm's "increasing" ones (inc 1), for a level M in [0, 10]: the higher the level,
the further from the image. The pixel operations are kornia's functions; where kornia's own
augmentation classes mean something else than Pillow's operations (brightness is an addition there,
saturation and contrast differ), the function that agrees with Pillow is taken.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from orderone.core.errors import MissingPackageError

TOP = 10.0  # the level at which every severity is greatest
Batch = Float[Tensor, "b c h w"]
PerImage = Float[Tensor, "b"]
Fill = Float[Tensor, "c"]
Operation = Callable[[Batch, PerImage, PerImage, Fill], Batch]


def kornia() -> Any:
    """kornia, whose functions are annotated but whose package re-exports are not."""
    try:
        import kornia
    except ImportError as error:
        raise MissingPackageError("kornia", needed_for="RandAugment") from error
    return cast(Any, kornia)


def auto_contrast(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Each channel stretched to the whole of [0, 1]; a constant one stays as it is."""
    flat = (x.amax((-2, -1), keepdim=True) - x.amin((-2, -1), keepdim=True)) == 0
    return torch.where(flat, x, kornia().enhance.normalize_min_max(x))


def equalize(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Each channel's histogram made flat."""
    return kornia().enhance.equalize(x)


def invert(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """The negative."""
    return kornia().enhance.invert(x)


def rotate(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """By ±3° a level about the centre."""
    angle = sign * level / TOP * math.radians(30)
    cos, sin = angle.cos(), angle.sin()
    cx, cy = (x.shape[-1] - 1) / 2, (x.shape[-2] - 1) / 2
    rows = [cos, sin, cx - cos * cx - sin * cy, -sin, cos, cy + sin * cx - cos * cy]
    return _warped(x, torch.stack(rows, -1).view(-1, 2, 3), fill)


def posterize(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """4 − ⌊0.4 M⌋ bits kept of the eight; at level 10 none, which is black.

    Differs from kornia.enhance.posterize, which cuts 255·x to an integer and so loses a level of
    grey where an operation before (an inversion, say) left float32 just under it.
    """
    bits = 4 - torch.floor(level / TOP * 4)
    step = (2.0 ** (8 - bits))[:, None, None, None]
    return torch.floor(torch.round(x * 255) / step) * step / 255


def solarize(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Pixels from 256 − ⌊25.6 M⌋ of 256 up are inverted."""
    threshold = (256 - torch.floor(level / TOP * 256))[:, None, None, None]
    # Half a level of grey below: on the grid of 8 bits the comparison is then exact.
    return torch.where(x * 255 < threshold - 0.5, x, 1 - x)


def solarize_add(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """⌊11 M⌋ levels of grey are added to pixels of the darker half."""
    added = torch.floor(level / TOP * 110)[:, None, None, None] / 255
    return torch.where(x * 255 < 127.5, (x + added).clamp(max=1), x)


def color(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Blended with, or away from, its grey version; an image of one channel has no colour."""
    return kornia().enhance.adjust_saturation_with_gray_subtraction(x, _blend(level, sign))


def contrast(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Blended with, or away from, its mean grey."""
    return kornia().enhance.adjust_contrast_with_mean_subtraction(x, _blend(level, sign))


def brightness(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Blended with, or away from, black."""
    return kornia().enhance.adjust_brightness_accumulative(x, _blend(level, sign))


def sharpness(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Blended with, or away from, a smoothed version."""
    if min(x.shape[-2:]) < 3:  # the border is left alone, and this is all border
        return x
    return kornia().enhance.sharpness(x, _blend(level, sign))


def shear_x(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Row y moved by ±0.03 M (y + ½) pixels."""
    factor = sign * level / TOP * 0.3
    return _warped(x, _affine(factor, xy=-factor, x1=-factor / 2), fill)


def shear_y(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Column x moved by ±0.03 M (x + ½) pixels."""
    factor = sign * level / TOP * 0.3
    return _warped(x, _affine(factor, yx=-factor, y1=-factor / 2), fill)


def translate_x(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Moved by ±4.5 % of the width a level."""
    share = sign * level / TOP * 0.45
    return _warped(x, _affine(share, x1=-share * x.shape[-1]), fill)


def translate_y(x: Batch, level: PerImage, sign: PerImage, fill: Fill) -> Batch:
    """Moved by ±4.5 % of the height a level."""
    share = sign * level / TOP * 0.45
    return _warped(x, _affine(share, y1=-share * x.shape[-2]), fill)


OPERATIONS: tuple[Operation, ...] = (
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    solarize_add,
    color,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)


def _blend(level: Tensor, sign: Tensor) -> Tensor:
    """Weight of the image itself: 1 changes nothing, at least 0.1 of it is kept."""
    return (1 + sign * level / TOP * 0.9).clamp(min=0.1)


def _affine(
    like: Tensor,
    *,
    xy: Tensor | None = None,
    x1: Tensor | None = None,
    yx: Tensor | None = None,
    y1: Tensor | None = None,
) -> Tensor:
    """[[1, xy, x1], [yx, 1, y1]] an image, from where a pixel is to where it goes."""
    one, zero = torch.ones_like(like), torch.zeros_like(like)
    entries = [one, xy, x1, yx, one, y1]
    return torch.stack([zero if e is None else e for e in entries], -1).view(-1, 2, 3)


def _warped(x: Tensor, matrix: Tensor, fill: Tensor) -> Tensor:
    size = (x.shape[-2], x.shape[-1])
    return kornia().geometry.transform.warp_affine(
        x, matrix, size, padding_mode="fill", fill_value=fill
    )
