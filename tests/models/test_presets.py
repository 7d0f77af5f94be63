import pytest
import torch

from orderone.core.errors import ConfigError
from orderone.models import PRESETS, build, preset


def count(name: str) -> int:
    model = build(preset(name), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not list(model.buffers())
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [("vit-b16", 86_444_008), ("bart-large", 404_845_568), ("r2c2", 2_688_739_328)],
)
def test_exact_counts(name: str, published: int) -> None:
    """[DYZ23] gives them rounded: 86e6, 405e6, 2.7e9."""
    assert count(name) == published


@pytest.mark.parametrize("name", ["small-lm-branch", "small-lm-post"])
def test_count_of_the_small_language_models(name: str) -> None:
    """[MRGSS21] App. A, by hand."""
    n, d_ff, T, n_vocab = 768, 512, 83, 10_002
    attention = 4 * (n * n + n)
    mlp = (n * d_ff + d_ff) + (d_ff * n + n)
    norms = 2 * 2 * n
    stem, head = n_vocab * n + T * n, n_vocab * n + n_vocab
    assert count(name) == 12 * (attention + mlp + norms) + stem + head


def test_overrides_replace_settings_and_the_multiplier_replaces_the_width() -> None:
    config = preset("small-lm-post", n=96, n_vocab=50, dropout=0.1)
    assert (config.n, config.dropout, config.mlp_width, config.M) == (96, 0.1, 512, 512 / 96)
    assert preset("small-lm-post", M=4).mlp_width == 4 * 768
    assert preset("bart-large", d_ff=512).M == 0.5
    assert preset("bart-large") == preset("bart-large")


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"preset 'gpt-5'; expected one of vit-b16, bart-large"):
        preset("gpt-5")
    with pytest.raises(ConfigError, match="unknown setting 'width' of VisionConfig"):
        preset("vit-b16", width=3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_copy_of_every_preset_runs(name: str) -> None:
    small = {"n": 16, "H": 2, "encoders": 1}
    more = {"vit-b16": {"image_size": 32}}.get(name, {"n_vocab": 7})
    model = build(preset(name, **small, **more), seed=0).eval()
    tokens = torch.zeros(1, 5, dtype=torch.long)
    given = {
        "vit-b16": (torch.zeros(1, 3, 32, 32),),
        "bart-large": (tokens, tokens),
        "r2c2": (tokens, tokens),
    }.get(name, (tokens,))
    assert model(*given).isfinite().all()
