"""Small random models of transformers, and sentences of unequal lengths for any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

VOCABULARY = 40
T = 12
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "roberta": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "albert": {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2},
    "xlnet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "t5": {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 32},
    "bart": {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    },
}
HEADLESS = {"bert": "BertModel", "albert": "AlbertModel"}


def outside(kind: str, *, seed: int = 0, **changes: Any) -> nn.Module:
    """A transformers model with a head, whose weights are large enough to matter."""
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": VOCABULARY,
        "intermediate_size": 32,
        "pad_token_id": 0,
        **SIZES[kind],
        **changes,
    }
    if kind in ("bert", "roberta", "albert"):
        settings["embedding_size"] = 16
    config = transformers.AutoConfig.for_model(kind, **settings)
    seq2seq = ("t5", "bart")
    causal = ("gpt2", "llama", "xlnet")
    auto = (
        transformers.AutoModelForSeq2SeqLM
        if kind in seq2seq
        else transformers.AutoModelForCausalLM
        if kind in causal
        else transformers.AutoModelForMaskedLM
    )
    if kind == "xlnet":
        auto = transformers.AutoModel
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.3)
    return model


def padded(lengths: tuple[int, ...], *, seed: int = 0, pad: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    words = torch.randint(3, VOCABULARY, (len(lengths), longest), generator=generator)
    real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return {"input_ids": words.masked_fill(~real, pad), "attention_mask": real.long()}


def for_kind(kind: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    if kind not in ("t5", "bart"):
        return batch
    words, real = batch["input_ids"], batch["attention_mask"]
    return {**batch, "decoder_input_ids": words, "decoder_attention_mask": real}
