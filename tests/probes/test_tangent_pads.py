"""Tangent kernels where pads are masked, sample by sample in another way: against the dense one."""

from __future__ import annotations

import pytest
import torch

from tests.models.reference import encoder_decoder, language
from tests.probes.test_tangent import assert_dense, tokens

REAL = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])


@pytest.mark.parametrize("causal", [False, True])
def test_our_language_model(causal: bool) -> None:
    model = language(encoders=1, n_vocab=9, causal=causal)
    assert_dense(model, {"tokens": tokens(2, 5, n_vocab=9), "real": REAL})


def test_our_encoder_decoder() -> None:
    model = encoder_decoder(encoders=1, decoders=1, n_vocab=7)
    words = {"source": tokens(2, 5, n_vocab=7), "target": tokens(2, 5, n_vocab=7)}
    assert_dense(model, {**words, "source_real": REAL, "target_real": REAL.flip(0)})


def test_bert_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False)
    inputs = {"input_ids": tokens(2, 5, n_vocab=11), "attention_mask": REAL.long()}
    assert_dense(model, inputs, output=lambda raw: raw.last_hidden_state[..., :3])
