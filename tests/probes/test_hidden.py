"""Hidden states by hooks are those that transformers and our own trace give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from orderone.core.errors import ModelError
from orderone.models import EncoderDecoderConfig, LanguageConfig, build
from orderone.probes.hidden import hidden_states, is_time_first, real_rows
from tests.probes.outside import SIZES, for_kind, outside, padded


def collected(model: nn.Module, **inputs: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    with hidden_states(model, lambda tower, layer, x: found.update({f"{tower}.{layer}": x})):
        model(**inputs)
    return found


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_every_layer_is_transformers_own(kind: str) -> None:
    model = outside(kind)
    batch = for_kind(kind, padded((5, 3)))
    before = hooks(model)
    found = collected(model, **batch)
    assert hooks(model) == before
    output = model(**batch, output_hidden_states=True)  # leaves hooks of its own
    towers = {"": getattr(output, "hidden_states", None)}
    if kind in ("t5", "bart"):
        towers = {
            "encoder": output.encoder_hidden_states,
            "decoder": output.decoder_hidden_states,
        }
    for tower, states in towers.items():
        own = [x for name, x in found.items() if name.rpartition(".")[0] == tower]
        if f"{tower}.norm" in found:
            own.pop(-2)  # transformers gives the last block's output after the norm alone
        if is_time_first(model):
            own = [x.transpose(0, 1) for x in own]
        assert len(own) == len(states), tower
        for mine, theirs in zip(own, states, strict=True):
            assert torch.equal(mine, theirs)


def test_ours_are_those_of_the_trace() -> None:
    config = LanguageConfig(n=16, H=2, encoders=2, n_vocab=11, T=6, final_norm=True)
    model = build(config, seed=0).double()
    tokens = torch.arange(6)[None]
    found = collected(model, tokens=tokens)
    trace = model.trace(tokens)
    assert list(found) == [".0", ".1", ".2", ".3", ".4", ".norm"]
    for mine, theirs in zip(found.values(), trace.hidden, strict=False):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_both_stacks_of_ours() -> None:
    config = EncoderDecoderConfig(n=16, H=2, encoders=1, decoders=1, n_vocab=11, T=6)
    model = build(config, seed=0).double()
    words = torch.arange(6)[None]
    found = collected(model, source=words, target=words[:, :4])
    assert list(found) == [
        *("encoder.0", "encoder.1", "encoder.2", "encoder.norm"),
        *("decoder.0", "decoder.1", "decoder.2", "decoder.3", "decoder.norm"),
    ]
    own = [x for name, x in found.items() if not name.endswith("norm")]
    for mine, theirs in zip(own, model.trace(words, words[:, :4]).hidden, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_a_second_pass_starts_again_even_after_one_that_raised() -> None:
    model = outside("gpt2")
    words = padded((4,))["input_ids"]
    names: list[str] = []

    def keep(tower: str, layer: str, x: Tensor) -> None:
        names.append(layer)
        if names == ["0", "1"]:
            raise RuntimeError("on purpose")

    with hidden_states(model, keep):
        with pytest.raises(RuntimeError, match="on purpose"):
            model(input_ids=words)
        model(input_ids=words)
    assert names == ["0", "1", "0", "1", "2", "norm"]
    assert hooks(model) == 0


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match="no hidden states in a Linear"):
        collected(nn.Linear(3, 3), input=torch.ones(1, 3))


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ModelError, match=r"hidden states of shape \(2, 5, 3\)"):
        real_rows(torch.ones(2, 5, 3), torch.ones(2, 4, dtype=torch.bool))
