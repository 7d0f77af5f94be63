"""The saturated network is the limit of f(x; cθ), for the models that people have."""

from typing import Any

import pytest
import torch

from orderone.asymptotics import degrees
from tests.asymptotics.networks import error_at, limits, outputs, randomized, slope

transformers: Any = pytest.importorskip("transformers")

WORDS = torch.tensor([[3, 7, 2, 9, 12, 5, 4], [8, 2, 6, 3, 11, 0, 0]])
REAL = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
TEXT = SIZES | {"vocab_size": 20, "max_position_embeddings": 32}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 20,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 20}

# name → settings, degrees of the hidden states, order in 1/c at which the limit is reached: 1 with
# biases, 2 in models without any, where a residual is behind by two degrees or more.
DECODER = ["1", "3", "1"]
CASES: dict[str, tuple[dict[str, Any], list[str], float]] = {
    "GPT2": (GPT2, DECODER, 1),
    "Bert": (TEXT, ["1", "1", "1"], 1),
    "Roberta": (TEXT | {"pad_token_id": 0}, ["1", "1", "1"], 1),
    "T5": (T5, DECODER * 2, 2),
    "Bart": (BART, ["1", "1", "1"] * 2, 1),
    "Llama": (TEXT | {"num_key_value_heads": 2}, ["1", "5", "1"], 2),
    "GPTNeoX": (TEXT, DECODER, 1),
    "ViT": (SIZES | {"image_size": 8, "patch_size": 4}, ["1", "3", "3"], 1),
}


def built(name: str, attention: str) -> tuple[Any, dict[str, Any], list[str]]:
    config = getattr(transformers, f"{name}Config")(**CASES[name][0])
    config._attn_implementation = attention
    model = randomized(getattr(transformers, f"{name}Model")(config))
    if name == "ViT":
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
        return model, {"pixel_values": pixels}, ["hidden_states"]
    inputs = {"input_ids": WORDS, "attention_mask": REAL}
    if config.is_encoder_decoder:
        both = ["encoder_hidden_states", "decoder_hidden_states"]
        return model, inputs | {"decoder_input_ids": WORDS}, both
    return model, inputs, ["hidden_states"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", list(CASES))
def test_scaled_networks_approach_the_saturated_one(name, attention):
    """Error of every hidden state falls as c^−1, or c^−2 without biases, from c = 1e3 to 1e5."""
    model, inputs, names = built(name, attention)
    read = outputs(*names)

    def call(model):
        return read(model(**inputs, output_hidden_states=True))

    found, trace = limits(model, call)
    _, expected, order = CASES[name]
    assert [str(each.degree) for each in found] == expected
    # Nearer ties than this would still be undecided at the smallest c below.
    assert trace.margin is not None
    assert trace.margin > 1e-6
    start = 1e2 if order == 2 else 1e4 if name in ("Bert", "Bart") else 1e3
    errors = {c: error_at(model, call, found, c) for c in (start, start * 10**0.5, start * 10)}
    assert slope(errors) == pytest.approx(-order, abs=0.1)
    assert error_at(model, call, found, 1e5) < 1e-4


def test_repeated_words_in_t5_tie_and_its_position_bias_decides():
    """Equal words have equal leading scores; the bias, three degrees below, tells them apart."""
    model = randomized(transformers.T5Model(transformers.T5Config(**T5)))
    words = torch.tensor([[3, 7, 3, 3, 12, 7, 4]])
    read = outputs("encoder_hidden_states", "encoder_attentions")

    def call(model):
        output = model(
            input_ids=words,
            decoder_input_ids=words,
            output_hidden_states=True,
            output_attentions=True,
        )
        return read(output)

    model.set_attn_implementation("eager")
    found, trace = limits(model, call)
    assert any("ties decided by a lower degree" in line.note for line in trace.lines)
    assert error_at(model, call, found, 1e4) < 1e-7


def test_the_minimum_of_the_dtype_masks_at_any_degree():
    """What stands at pads changes nothing in the saturated network."""
    model, inputs, _ = built("Bert", "eager")
    other = inputs | {"input_ids": torch.where(REAL == 1, WORDS, 13)}
    found, _ = limits(model, lambda m: [m(**inputs).last_hidden_state])
    changed, _ = limits(model, lambda m: [m(**other).last_hidden_state])
    torch.testing.assert_close(found[0].lead[REAL == 1], changed[0].lead[REAL == 1])
    assert not torch.allclose(found[0].lead[REAL == 0], changed[0].lead[REAL == 0])


def test_the_trace_names_modules_and_parameters():
    model, inputs, _ = built("GPT2", "eager")
    trace = degrees(model, **inputs)
    line = next(each for each in trace.lines if each.module == "h.0.attn.c_proj")
    assert (line.operation, line.degree) == ("addmm", 3)
    assert {"h.0.attn.c_proj.bias", "h.0.attn.c_proj.weight"} <= {x.source for x in line.inputs}
    assert trace.degree_of("h.0.attn") == 3
    assert [each.degree for each in trace.ancestry(line.number)][:3] == [3, 2, 2]
