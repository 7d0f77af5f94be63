import pytest
import torch
from torch.nn import functional

from orderone.core.errors import ConfigError
from tests.models.reference import images, vision, vit


def test_vit_with_our_weights_gives_our_outputs() -> None:
    ours = vision(stem="class-token", head="class-token", bias=True, affine=True)
    pixels = images(3, 3, 16, 16)
    with torch.no_grad():
        expected = vit(ours)(pixels).logits
    torch.testing.assert_close(ours(pixels), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.trace(pixels).output, expected, atol=1e-4, rtol=0)


def test_patches_are_read_row_by_row() -> None:
    """[DYZ23] eq. (1.6)–(1.7): z_t = b_t + W^patch x_t with x_t cut out by hand."""
    model, pixels = vision(), images(1, 3, 16, 16)
    W = model.stem.patch.weight.flatten(1)
    z = model.stem(pixels)[0]
    for t in range(16):
        y, x = 4 * (t // 4), 4 * (t % 4)
        patch = pixels[0, :, y : y + 4, x : x + 4].flatten()
        expected = model.stem.position.weight[t] + W @ patch
        torch.testing.assert_close(z[t], expected, atol=1e-5, rtol=1e-5)


def test_the_class_token_stands_at_zero() -> None:
    """[DYZ23] eq. (1.8)."""
    model, pixels = vision(stem="class-token"), images(2, 3, 16, 16)
    z = model.stem(pixels)
    first = model.stem.class_token + model.stem.position.weight[0]
    torch.testing.assert_close(z[:, 0], first.expand(2, -1))
    rest = functional.conv2d(pixels, model.stem.patch.weight, stride=4).flatten(2).mT
    torch.testing.assert_close(z[:, 1:], rest + model.stem.position.weight[1:])


def test_convolutions_halve_the_image_and_end_in_the_width() -> None:
    model, pixels = vision(stem="convolutions"), images(2, 3, 16, 16)
    first, second = (convolution.weight for convolution in model.stem.convolutions)
    assert [tuple(first.shape), tuple(second.shape)] == [(12, 3, 3, 3), (24, 12, 3, 3)]
    x = functional.gelu(functional.conv2d(pixels, first, stride=2, padding=1))
    x = functional.gelu(functional.conv2d(x, second, stride=2, padding=1))
    z = torch.einsum("ij,bjyx->byxi", model.stem.patch.weight[:, :, 0, 0], x).flatten(1, 2)
    expected = z + model.stem.position.weight
    torch.testing.assert_close(model.stem(pixels), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stem", ["patch", "class-token", "convolutions"])
def test_heads_are_one_map_read_in_three_ways(stem: str) -> None:
    """[DYZ23] eq. (1.22)–(1.23): the mean-pooled outputs are the mean of each t's."""
    models = {
        head: vision(stem=stem, head=head)
        for head in ("per-token", "mean", "class-token")
        if head != "class-token" or stem == "class-token"
    }
    pixels = images(2, 3, 16, 16)
    tokens = models["per-token"](pixels)
    assert tokens.shape[1] == models["mean"].config.T
    torch.testing.assert_close(models["mean"](pixels), tokens.mean(1), atol=1e-5, rtol=1e-5)
    if stem == "class-token":
        torch.testing.assert_close(
            models["class-token"](pixels), tokens[:, 0], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
def test_both_paths_agree(placement: str) -> None:
    model, pixels = vision(placement=placement), images(2, 3, 16, 16)
    torch.testing.assert_close(model(pixels), model.trace(pixels).output, atol=1e-5, rtol=1e-5)


def test_images_of_another_size_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="images of 3×16×20; expected 3×16×16"):
        vision()(images(1, 3, 16, 20))
