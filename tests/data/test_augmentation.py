"""The recipe against Pillow (whose operations timm's are) and what mixing must conserve."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.data import image_operations as operations
from orderone.data.augmentation import (
    AUGMENTATIONS,
    Augmentation,
    augmentation,
    augmented,
    cutmix,
    erased,
    flipped,
    mixed,
    mixup,
    normalised,
    randaugmented,
    shifted,
    smoothed,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def photograph(size: int = 24) -> tuple[Image.Image, Tensor]:
    """Something smooth with noise on it, of 8 bits, as Pillow and as we hold it."""
    slope = np.add.outer(np.arange(size), 2 * np.arange(size))[..., None] * [2, 1, 3]
    noise = rng(1).integers(0, 60, size=(size, size, 3))
    pixels = (slope * 120 // slope.max((0, 1)) + noise + [5, 20, 40]).astype(np.uint8)
    return Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255


def apply(name: str, images: Tensor, level: float, sign: float) -> Tensor:
    numbers = [images.new_full((len(images),), value) for value in (level, sign)]
    return getattr(operations, name)(images, *numbers, images.new_tensor(MEAN))


def pillow(name: str, image: Image.Image, level: float, sign: float) -> Image.Image:
    """The operation as timm carries it out: on Pillow's images, with timm's increasing severity."""
    blend = max(0.1, 1 + sign * level / 10 * 0.9)
    enhance = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhance:
        return enhance[name](image).enhance(blend)
    if name == "solarize_add":
        table = [min(255, i + int(level / 10 * 110)) if i < 128 else i for i in range(256)]
        return image.point(table * 3)
    return {
        "auto_contrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "invert": lambda: ImageOps.invert(image),
        # Newer Pillow takes 1 bit or more; none of them kept is a black image.
        "posterize": lambda: (
            ImageOps.posterize(image, 4 - int(level / 10 * 4))
            if level < 10
            else image.point([0] * 768)
        ),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(level / 10 * 256)),
    }[name]()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("level", [0.0, 3.0, 9.0, 10.0])
@pytest.mark.parametrize(
    "name",
    [
        *("auto_contrast", "equalize", "invert", "posterize", "solarize", "solarize_add"),
        *("color", "contrast", "brightness", "sharpness"),
    ],
)
def test_pixel_operations_are_pillows(name: str, level: float, sign: float) -> None:
    """Within one and a half levels of grey: Pillow rounds inside (mean grey, luma), we do not."""
    image, tensor = photograph()
    ours = apply(name, tensor, level, sign)[0].permute(1, 2, 0) * 255
    theirs = torch.from_numpy(np.asarray(pillow(name, image, level, sign)).copy()).float()
    exact = name in {"invert", "posterize", "solarize", "solarize_add"}
    assert (ours - theirs).abs().max() < (1e-3 if exact else 1.5)


def test_posterize_after_invert_keeps_every_level() -> None:
    """1 − v/255 is just under its level of grey for most v; bit for bit Pillow's all the same."""
    ramp = torch.arange(256.0).view(1, 1, 16, 16).expand(1, 3, 16, 16) / 255
    image = Image.fromarray(np.arange(255, -1, -1, dtype=np.uint8).reshape(16, 16))
    for level in (0.0, 4.0, 9.0):
        ours = apply("posterize", apply("invert", ramp, level, 1.0), level, 1.0)[0, 0] * 255
        theirs = torch.from_numpy(
            np.asarray(ImageOps.posterize(image, 4 - int(level * 0.4))).copy()
        )
        assert torch.equal(ours.round().byte(), theirs)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_warps_are_pillows(name: str, sign: float) -> None:
    """Direction, centre and size of the warp at level 5, away from borders and the fill."""
    image, tensor = photograph(size=40)
    factor, size = sign * 0.5, 40
    affine = {
        "shear_x": (1, 0.3 * factor, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, 0.3 * factor, 1, 0),
        "translate_x": (1, 0, 0.45 * factor * size, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, 0.45 * factor * size),
    }
    if name == "rotate":
        theirs = image.rotate(30 * factor, resample=Image.Resampling.BILINEAR)
    else:
        theirs = image.transform(
            image.size, Image.Transform.AFFINE, affine[name], Image.Resampling.BILINEAR
        )
    ours = apply(name, tensor, 5.0, sign)[0].permute(1, 2, 0) * 255
    difference = (ours - torch.from_numpy(np.asarray(theirs).copy()).float()).abs()
    assert difference[10:30, 10:30].max() < 1.5


def test_a_warp_uncovers_the_fill() -> None:
    """At level 10 a translation uncovers 45 % of the width: 9 of 20 columns, filled."""
    moved = apply("translate_x", torch.ones(1, 3, 20, 20), 10.0, 1.0)
    torch.testing.assert_close(
        moved[0, :, :, 11:], torch.tensor(MEAN)[:, None, None].expand(3, 20, 9)
    )
    assert (moved[0, :, :, :11] == 1).all()


def test_each_image_draws_its_own_operations() -> None:
    """Of n images with 2 draws each (applied with ½, one of 15): the share left alone.

    On this image identity operations are none, so untouched = ¼, within 5/√n standard errors.
    """
    _, tensor = photograph(size=12)
    count = 1600
    recipe = Augmentation(operations=2)
    out = randaugmented(tensor.expand(count, -1, -1, -1), recipe=recipe, fill=MEAN, rng=rng(3))
    untouched = (out == tensor).flatten(1).all(1).double().mean().item()
    assert abs(untouched - 0.25) < 5 * (0.25 * 0.75 / count) ** 0.5
    # Were the operations drawn once a batch (kornia's way), a few outcomes would cover all images.
    assert len({bytes(image.numpy()) for image in out}) > count // 4


def test_levels_spread_by_mstd() -> None:
    """Solarize-add's ⌊11M⌋ with M ~ N(9, ½²) cut at 10: mean and deviation of what is added."""
    dark = torch.zeros(6000, 1, 2, 2)
    recipe = Augmentation(operations=1)
    out = randaugmented(dark, recipe=recipe, fill=(0.0,), rng=rng(4))
    added = (out[:, 0, 0, 0] * 255).round()
    levels = added[(added > 60) & (added < 111)].double()
    drawn = np.floor(rng(5).normal(9, 0.5, 200_000).clip(0, 10) * 11)
    n = len(levels)
    assert n > 100
    assert abs(levels.mean().item() - drawn.mean()) < 5 * drawn.std() / n**0.5
    assert abs(levels.std().item() / drawn.std() - 1) < 5 / n**0.5


def test_operations_leave_pixels_in_range() -> None:
    _, tensor = photograph(size=16)
    for name in (operation.__name__ for operation in operations.OPERATIONS):
        for sign in (-1.0, 1.0):
            out = apply(name, tensor, 9.3, sign)
            assert out.min() >= -1e-6, name
            assert out.max() <= 1 + 1e-6, name
    flat = torch.full((1, 3, 4, 4), 0.3)
    assert torch.equal(apply("auto_contrast", flat, 9.0, 1.0), flat)


def test_mixup_weighs_images_and_targets_alike() -> None:
    """λ read off the pixels (image i is the constant i) is λ read off the targets."""
    images = torch.arange(6.0)[:, None, None, None].expand(6, 3, 4, 4)
    for seed in range(20):
        out, targets = mixup(images, torch.eye(6), alpha=0.8, rng=rng(seed))
        share = targets.diagonal()[1:]
        torch.testing.assert_close(out[1:, 0, 0, 0], torch.arange(1.0, 6) - (1 - share))
        torch.testing.assert_close(targets.sum(1), torch.ones(6))


def test_mixup_shares_are_beta() -> None:
    """Mean ½ and variance 1/(4(2α + 1)) of λ ~ Beta(α, α), within 5 standard errors."""
    alpha, n = 0.8, 3000
    one = torch.eye(2)
    generator = rng(6)
    shares = np.array(
        [mixup(torch.zeros(2, 1, 1, 1), one, alpha=alpha, rng=generator)[1][0, 0] for _ in range(n)]
    )
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 5 * (variance / n) ** 0.5
    assert abs(shares.var() / variance - 1) < 5 * 1.5 / n**0.5


@pytest.mark.parametrize("shape", [(8, 8), (7, 13), (1, 5)])
def test_cutmix_targets_are_pixel_shares(shape: tuple[int, int]) -> None:
    """Pixels counted in the output (image i is the constant i) are the targets' weights."""
    images = torch.arange(5.0)[:, None, None, None].expand(5, 2, *shape)
    covered = 0
    for seed in range(60):
        out, targets = cutmix(images, torch.eye(5), alpha=1.0, rng=rng(seed))
        counted = torch.stack([(out == i).double().mean((1, 2, 3)) for i in range(5)], dim=1)
        torch.testing.assert_close(targets.double(), counted, atol=1e-6, rtol=0)
        covered += int((out != images).any())
    assert covered > (20 if min(shape) > 1 else -1)


def test_mixing_takes_turns() -> None:
    """With both on, CutMix comes half the time: its pixels are all of one image or the other."""
    images = torch.arange(4.0)[:, None, None, None].expand(4, 1, 8, 8)
    n, generator, whole = 2000, rng(7), 0
    for _ in range(n):
        out, _ = mixed(images, torch.eye(4), mixup_alpha=0.8, cutmix_alpha=1.0, rng=generator)
        whole += int((out == out.round()).all())
    assert abs(whole / n - 0.5) < 5 * 0.5 / n**0.5


def test_smoothing_is_exact() -> None:
    targets = smoothed(torch.tensor([2, 0]), classes=4, smoothing=0.1)
    expected = torch.tensor([[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]])
    torch.testing.assert_close(targets, expected, atol=1e-7, rtol=0)


def test_erasing_takes_its_share() -> None:
    """25 % of n images within 5 standard errors; noise of mean 0 and deviation 1 inside.

    The mean area is that of U(2 %, 33 %) less what the border cuts off.
    """
    n = 4000
    out = erased(torch.full((n, 1, 16, 16), 9.0), share=0.25, rng=rng(8))
    changed = out != 9
    share = changed.flatten(1).any(1).double().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / n) ** 0.5
    noise = out[changed].double()
    assert abs(noise.mean().item()) < 5 / len(noise) ** 0.5
    assert abs(noise.var().item() - 1) < 5 * (2 / len(noise)) ** 0.5
    area = changed.flatten(1).double().mean(1)
    area = area[area > 0]
    assert 0.16 < area.mean().item() < 0.18
    assert area.max() < 0.40


def test_erased_pixels_form_a_rectangle() -> None:
    out = erased(torch.full((200, 2, 9, 14), 9.0), share=1.0, rng=rng(9))
    for image in out:
        changed = (image != 9).all(0)
        rows, columns = changed.any(1), changed.any(0)
        assert changed.any()
        assert torch.equal(changed, rows[:, None] & columns)
        assert rows.nonzero().flatten().diff().eq(1).all()
        assert columns.nonzero().flatten().diff().eq(1).all()


def test_shift_moves_and_flip_mirrors() -> None:
    """A lit pixel in the middle goes to each of nine places; a flip twice is nothing."""
    images = torch.zeros(400, 1, 5, 5)
    images[:, :, 2, 2] = 1
    places = shifted(images, pixels=1, rng=rng(10)).sum(0)[0]
    assert (places[1:4, 1:4] > 0).all()
    assert places.sum() == 400
    _, tensor = photograph(size=6)
    out = flipped(tensor.expand(300, -1, -1, -1), share=0.5, rng=rng(11))
    mirrored = (out == tensor.flip(-1)).flatten(1).all(1)
    assert (mirrored | (out == tensor).flatten(1).all(1)).all()
    assert abs(mirrored.double().mean().item() - 0.5) < 5 * 0.5 / 300**0.5


def test_the_paper_recipe_is_a_function_of_its_seed() -> None:
    """Bit-equal under another global seed, which it neither reads nor moves."""
    _, tensor = photograph(size=16)
    images, labels = tensor.expand(8, -1, -1, -1), torch.arange(8) % 3
    before = images.clone()

    def run(seed: int) -> tuple[Tensor, Tensor]:
        return augmented(
            images,
            labels,
            recipe=augmentation("paper"),
            classes=3,
            mean=MEAN,
            std=STD,
            rng=rng(seed),
        )

    torch.manual_seed(1)
    one, targets = run(0)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, targets_again = run(0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, again)
    assert torch.equal(targets, targets_again)
    assert torch.equal(images, before)
    assert not torch.equal(one, run(1)[0])
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    assert (targets > 0).all()


def test_none_only_normalises() -> None:
    _, tensor = photograph(size=8)
    images, labels = tensor.expand(2, -1, -1, -1), torch.tensor([1, 0])
    out, targets = augmented(
        images, labels, recipe=AUGMENTATIONS["none"], classes=2, mean=MEAN, std=STD, rng=rng(0)
    )
    assert targets is labels
    torch.testing.assert_close(
        out * torch.tensor(STD)[:, None, None] + images.new_tensor(MEAN)[:, None, None], images
    )
    assert torch.equal(out, normalised(images, mean=MEAN, std=STD))


@pytest.mark.parametrize(
    "bad", [{"erasing": 1.5}, {"magnitude": 11.0}, {"mixup": -1.0}, {"smoothing": float("nan")}]
)
def test_impossible_recipes_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Augmentation(**bad)


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ConfigError, match="none, light, paper"):
        augmentation("heavy")
