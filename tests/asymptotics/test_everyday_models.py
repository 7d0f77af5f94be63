"""Models beyond the named ones: each is carried to its limit, or refused by name."""

from typing import Any

import pytest
import torch

from orderone.asymptotics import degrees, saturated
from orderone.core.errors import ModelError
from tests.asymptotics.networks import error_at, limits, randomized
from tests.asymptotics.test_named_models import BART, REAL, SIZES, TEXT, WORDS
from tests.timm_alone import timm_or_skip

transformers: Any = pytest.importorskip("transformers")

MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WORDY = TEXT | MARKS
GROUPED = WORDY | {"num_key_value_heads": 2, "head_dim": 4}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}
IMAGES = SIZES | {"image_size": 8, "patch_size": 4}
WINDOWS = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
TEXTS: dict[str, dict[str, Any]] = {
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "vocab_size": 20},
    "OPT": WORDY | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "Mistral": GROUPED,
    "Mixtral": GROUPED | {"num_local_experts": 4},
    "Qwen2": GROUPED,
    "Qwen3": GROUPED,
    "Gemma": GROUPED,
    "Gemma2": GROUPED,
    "Phi": WORDY,
    "Phi3": WORDY,
    "Bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 20, "pad_token_id": 0},
    "Falcon": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"vocab_size": 20, "alibi": True},
    "Electra": WORDY | {"embedding_size": 8},
    "Deberta": WORDY | RELATIVE,
    "DebertaV2": WORDY | RELATIVE,
    "Albert": WORDY | {"embedding_size": 8},
    "MPNet": WORDY,
    "XLNet": {"vocab_size": 20, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32},
    "CLIPText": WORDY,
}
PIXELS: dict[str, dict[str, Any]] = {
    "DeiT": IMAGES,
    "Beit": IMAGES | {"use_relative_position_bias": True},
    "Dinov2": IMAGES,
    "CLIPVision": IMAGES,
    "Swin": WINDOWS,
    "Swinv2": WINDOWS,
}
SMALL = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 4}
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    "vit_tiny_patch16_224": (SMALL, 32),
    "vit_small_patch16_rope_224": (SMALL, 32),
    "beit_base_patch16_224": (SMALL, 32),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "embed_dim": 8, "depths": (1, 1), "num_heads": (2, 4)},
        56,
    ),
    "mixer_s32_224": ({"img_size": 64}, 64),
    "convnext_atto": ({}, 32),
    "resnet18": ({}, 32),
    "seresnet18": ({}, 32),
    "mobilenetv3_small_050": ({}, 32),
}


def built(name: str, settings: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{name}Config")(**settings)
    return randomized(getattr(transformers, f"{name}Model")(config))


def pictures(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)


def approaches(model: Any, call: Any, last: float) -> None:
    found, trace = limits(model, call)
    assert trace.output
    assert not trace.output[0].vanishes
    before, after = (error_at(model, call, found, c) for c in (last / 10, last))
    assert after < 5e-3
    assert after < before / 5 or after < 1e-9


@pytest.mark.parametrize("name", list(TEXTS))
def test_text_models_approach_their_limit(name):
    model = built(name, TEXTS[name])
    if name == "Mixtral":  # the model itself multiplies groups in single precision alone
        model.set_experts_implementation("eager")
    inputs = {"input_ids": WORDS, "attention_mask": REAL}
    approaches(model, lambda m: [m(**inputs).last_hidden_state], 1e5)


@pytest.mark.parametrize("name", list(PIXELS))
def test_vision_models_approach_their_limit(name):
    model = built(name, PIXELS[name])
    pixels = pictures(model.config.image_size)
    approaches(model, lambda m: [m(pixel_values=pixels).last_hidden_state], 1e5)


def test_whisper_approaches_its_limit():
    settings = BART | {
        "num_mel_bins": 4,
        "max_source_positions": 10,
        "max_target_positions": 16,
        "decoder_start_token_id": 1,
    }
    model = built("Whisper", {k: v for k, v in settings.items() if k != "max_position_embeddings"})
    generator = torch.Generator().manual_seed(0)
    sound = torch.randn(2, 4, 20, generator=generator, dtype=torch.float64)
    approaches(
        model,
        lambda m: [m(input_features=sound, decoder_input_ids=WORDS).last_hidden_state],
        1e5,
    )


@pytest.mark.parametrize("name", list(TIMM))
def test_timm_models_approach_their_limit(name):
    """Without layer norms to 1e4 only: at degree 70 the numbers themselves end at c = 2e4."""
    settings, size = TIMM[name]
    model = randomized(timm_or_skip().create_model(name, num_classes=7, **settings))
    pixels = pictures(size)
    deep = name.startswith(("resnet", "seresnet", "mobilenet"))
    approaches(model, lambda m: [m(pixels)], 1e4 if deep else 1e6)


def test_a_resnet_as_it_begins_is_carried():
    """The last gain of every path is 0, which leaves the skips alone."""
    model = timm_or_skip().create_model("resnet18", num_classes=7).double().eval()
    pixels = pictures(32)
    assert any(not bool(parameter.any()) for parameter in model.parameters())
    approaches(model, lambda m: [m(pixels)], 1e3)


def test_a_state_space_model_has_no_degree():
    """e^{A Δ} with A = −e^{θ}: faster than any power."""
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 20, "state_size": 4}
    with pytest.raises(ModelError, match="an exponential of numbers that grow"):
        degrees(built("Mamba", settings), WORDS)


def test_experts_in_double_precision_are_those_of_single():
    """The product by groups is PyTorch's own in float32 and ours in float64."""
    model = built("Mixtral", TEXTS["Mixtral"])
    model.set_experts_implementation("grouped_mm")
    double, _ = limits(model, lambda m: [m(WORDS).last_hidden_state])
    with torch.no_grad():
        model.float()
    single = saturated(model, WORDS).last_hidden_state
    torch.testing.assert_close(single.lead, double[0].lead.float(), rtol=1e-4, atol=1e-4)
