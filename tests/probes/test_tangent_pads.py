"""Tangent kernels where pads are masked, sample by sample in another way: against the dense one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orderone.probes.tangent import tangent
from tests.models.reference import encoder_decoder, language
from tests.probes.dense import averaged, jacobian, kernels
from tests.probes.test_tangent import tokens

REAL = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])


def assert_dense_by_name(model: nn.Module, inputs: dict[str, Tensor], output: Any = None) -> None:
    pick = output or (lambda raw: raw)
    model = model.double().eval()
    expected = kernels(jacobian(model, lambda m: pick(m(**inputs))))
    found = tangent(model, inputs, groups={n: (n, 1.0) for n in expected}, output=output)
    largest = max(K.abs().max().item() for K in expected.values())
    n_out = pick(model(**inputs)).shape[-1]
    for name, K in expected.items():
        scale = max(K.abs().max().item(), 1e-12 * largest)
        gap = (found.groups[name] - averaged(K, n_out)).abs().max().item()
        assert gap <= 1e-9 * scale, name


@pytest.mark.parametrize("causal", [False, True])
def test_our_language_model(causal: bool) -> None:
    model = language(encoders=1, n_vocab=9, causal=causal)
    assert_dense_by_name(model, {"tokens": tokens(2, 5, n_vocab=9), "real": REAL})


def test_our_encoder_decoder() -> None:
    model = encoder_decoder(encoders=1, decoders=1, n_vocab=7)
    words = {"source": tokens(2, 5, n_vocab=7), "target": tokens(2, 5, n_vocab=7)}
    assert_dense_by_name(model, {**words, "source_real": REAL, "target_real": REAL.flip(0)})


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
    assert_dense_by_name(model, inputs, output=lambda raw: raw.last_hidden_state[..., :3])
