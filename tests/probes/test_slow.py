"""Slower probes against attention that is written out, and models left as they were."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import orderone
from orderone.core.record import Record
from orderone.models import LanguageConfig, build
from orderone.probes.slow import Probes, WeightsMode, attended, entropy


def test_entropy_and_attended_positions_of_known_rows() -> None:
    """log 4 and 4 positions of an even row, 0 and 1 of a certain one; a row of padding is none."""
    even, certain = torch.full((1, 4), 0.25), torch.eye(4)[:1]
    assert entropy(even).item() == pytest.approx(math.log(4))
    assert attended(even).item() == 4
    assert entropy(certain).item() == 0
    assert attended(certain).item() == 1
    padded = torch.cat((even, torch.zeros(1, 4)))
    assert entropy(padded).item() == pytest.approx(math.log(4))
    assert attended(padded).item() == 4


def written_out(q: Tensor, k: Tensor, legal: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~legal, -math.inf).softmax(-1)


@pytest.mark.parametrize("how", ["causal", "masked", "grouped", "written", "module"])
def test_weights_are_those_of_attention_written_out(how: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    causal = torch.ones(5, 5).tril().bool()
    seen: list[Tensor] = []
    if how == "module":
        mha = nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.5)
        x = q.transpose(1, 2).flatten(2)
        w = mha.in_proj_weight
        parts = [(x @ each.T).unflatten(-1, (4, 8)).transpose(1, 2) for each in w.chunk(3)[:2]]
        expected = written_out(*parts, torch.ones(5, 5).bool())
        with WeightsMode(seen.append):
            mha(x, x, x, need_weights=False)
    elif how == "written":
        expected = written_out(q, k, causal)
        with WeightsMode(seen.append):
            written_out(q, k, causal)
    elif how == "grouped":
        expected = written_out(q, k[:, :2].repeat_interleave(2, 1), causal)
        with WeightsMode(seen.append):
            scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
    else:
        settings: Any = {"is_causal": True} if how == "causal" else {"attn_mask": causal}
        expected = written_out(q, k, causal)
        with WeightsMode(seen.append):
            scaled_dot_product_attention(q, k, v, **settings, dropout_p=0.9)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], expected)


def test_a_watch_probes_on_its_own_clock_and_leaves_the_run_as_it_was() -> None:
    config = LanguageConfig(n=32, H=2, encoders=2, n_vocab=20, T=6, dropout=0.3)
    tokens = torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))
    weights, records = [], []

    class Kept:
        def write_all(self, found: Any) -> None:
            records.extend(found)

        def flush(self) -> None: ...
        def close(self) -> None: ...

    for probed in (False, True):
        model = build(config, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        probes = Probes(batches=[tokens], every=2) if probed else None
        torch.manual_seed(0)
        with orderone.watch(model, optimizer, to=Kept(), every=100, probes=probes):
            for _ in range(5):
                optimizer.zero_grad()
                model(tokens).square().mean().backward()
                optimizer.step()
        assert model.training
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    check(records)


def check(records: list[Record]) -> None:
    found = {(r.step, r.name) for r in records}
    names = ("largest_logit", "attention_entropy", "attended_positions", "preactivation")
    assert found == {(step, name) for step in (2, 4) for name in names}
    for record in records:
        if record.name == "attention_entropy":
            assert 0 < record.value <= math.log(6)
        if record.name == "attended_positions":
            assert record.value == pytest.approx(3.5)  # rows of 1 … 6 legal positions
