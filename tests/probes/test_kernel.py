"""Measured kernels are those of the signals themselves."""

from __future__ import annotations

import pytest
import torch

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.probes.kernel import kernel
from tests.models.reference import encoder_decoder, language


def gram(z: torch.Tensor) -> torch.Tensor:
    rows = z.detach().double().flatten(0, -2)
    return rows @ rows.T / rows.shape[1]


def test_g_and_f_of_our_model_are_those_of_its_trace() -> None:
    model = language(affine=False)
    x = torch.arange(10).view(2, 5)
    found = kernel(model, x)
    trace = model.trace(x)
    assert [each.name for each in found] == ["stem", *(f"blocks.{i}" for i in range(4)), "output"]
    for each, z in zip(found, [*trace.hidden, trace.output], strict=True):
        torch.testing.assert_close(each.G, gram(z), rtol=1e-5, atol=1e-6)
        s = torch.nn.functional.layer_norm(z, z.shape[-1:], eps=model.config.epsilon)
        torch.testing.assert_close(each.F, gram(s), rtol=1e-4, atol=1e-5)
        assert each.shape == (2, 5)
    coarse = kernel(model, x, epsilon=1.0)[0]
    s = torch.nn.functional.layer_norm(trace.hidden[0], (24,), eps=1.0)
    torch.testing.assert_close(coarse.F, gram(s), rtol=1e-4, atol=1e-5)


def test_both_sides_of_an_encoder_decoder() -> None:
    model = encoder_decoder(encoders=1, decoders=1)
    source, target = torch.arange(10).view(2, 5), torch.arange(6).view(2, 3)
    found = kernel(model, (source, target))
    trace = model.trace(source, target)
    assert [each.name for each in found][:2] == ["encoder.blocks in", "encoder.blocks.0"]
    for each, z in zip(found, [*trace.hidden, trace.output], strict=True):
        torch.testing.assert_close(each.G, gram(z), rtol=1e-5, atol=1e-6)


def test_hidden_states_of_transformers() -> None:
    """All but their last, which GPT-2 normalises once more."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    x = torch.arange(10).view(2, 5)
    found = kernel(model, {"input_ids": x})
    states = model(x, output_hidden_states=True).hidden_states
    assert [each.name for each in found] == ["stem", "transformer.h.0", "transformer.h.1", "output"]
    for each, z in zip(found, states[:-1], strict=False):
        torch.testing.assert_close(each.G, gram(z), rtol=1e-5, atol=1e-7)
    last = model.transformer.ln_f
    states_of_last = kernel(model, x, modules=["transformer.ln_f"])[0]
    assert isinstance(last, torch.nn.LayerNorm)
    torch.testing.assert_close(states_of_last.G, gram(states[-1]), rtol=1e-5, atol=1e-6)


def test_epsilon_is_the_models_whatever_its_norm_calls_it() -> None:
    """T5's norm says variance_epsilon: F_aa = v / (v + ε) with v the variance over features."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    config.layer_norm_epsilon = 0.25
    model = transformers.T5EncoderModel(config).eval()
    found = kernel(model, torch.arange(10).view(2, 5))[0]
    z = model.get_input_embeddings()(torch.arange(10)).detach().double()
    v = z.var(-1, correction=0)
    torch.testing.assert_close(found.F.diagonal(), v / (v + 0.25), rtol=1e-10, atol=1e-12)


def test_a_module_that_never_runs_is_refused() -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 4), "idle": torch.nn.Linear(3, 4)})
    model.forward = lambda x: model["used"](x)
    assert len(kernel(model, torch.ones(2, 3), modules=["used"])) == 2
    with pytest.raises(ModelError, match="module 'idle', which gave no tensor"):
        kernel(model, torch.ones(2, 3), modules=["used", "idle"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"epsilon": float("nan")}, "epsilon = nan"),
        ({"modules": "blocks.0"}, "modules = 'blocks.0'"),
    ],
)
def test_settings_are_checked(settings, said) -> None:
    with pytest.raises(ConfigError, match=said):
        kernel(language(), torch.arange(10).view(2, 5), **settings)


def test_what_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Flatten(0))
    with pytest.raises(ModelError, match="without lists of blocks"):
        kernel(model, torch.ones(2, 3))
    with pytest.raises(ConfigError, match="module '7'"):
        kernel(model, torch.ones(2, 3), modules=["7"])
    with pytest.raises(DataError, match="'1' for 2 samples"):
        kernel(model, torch.ones(2, 3), modules=["1"])
