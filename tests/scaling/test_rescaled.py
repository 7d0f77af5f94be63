"""A model that rescales a tensor by itself starts like one that does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from orderone.scaling.plan import plan
from orderone.scaling.roles import Role

VOCABULARY, T = 64, 12


def gemma(n: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GemmaConfig(
        hidden_size=n,
        intermediate_size=2 * n,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=n // 4,
        vocab_size=VOCABULARY,
    )
    return transformers.GemmaForCausalLM(config).eval()


def t5(n: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=n, d_kv=n // 4, d_ff=2 * n, num_layers=1, num_heads=4, vocab_size=VOCABULARY
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def gpt_neo(n: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoConfig(
        hidden_size=n,
        num_layers=1,
        num_heads=4,
        attention_types=[[["global"], 1]],
        vocab_size=VOCABULARY,
        max_position_embeddings=T,
    )
    return transformers.GPTNeoForCausalLM(config).eval()


@pytest.mark.parametrize("n", [32, 128])
def test_gemmas_words_enter_at_order_one(n: int) -> None:
    """z^(1) has variance C_WE = 1 although the model multiplies by √n; k/√N with k = 5."""
    model = gemma(n)
    planned = plan(model)
    planned.initialize_(seed=0)
    tokens = torch.arange(VOCABULARY)[None]
    with torch.no_grad():
        stem = model.model(tokens, output_hidden_states=True).hidden_states[0]
    assert stem.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / stem.numel()))


@pytest.mark.parametrize("s", [0.0, 1.0])
def test_gemmas_logits_are_those_of_the_tied_rule(s: float) -> None:
    """Logits are n^(−(1+s)/2) (√n W)·s: the rule of the matrix that the stem really adds."""
    n = 64
    model = gemma(n)
    plan(model, s=s).initialize_(seed=0)
    tokens = torch.arange(T)[None]
    with torch.no_grad():
        last = model.model(tokens).last_hidden_state
        logits = model(tokens).logits
    stem = math.sqrt(n) * model.model.embed_tokens.weight
    expected = n ** (-(1 + s) / 2) * last @ stem.T
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_an_adamw_step_moves_the_stem_as_the_rule_says() -> None:
    """Sign descent: the change of √n·W is η n^(−1/2), as of a model without the √n."""
    n = 64
    model = gemma(n)
    planned = plan(model)
    planned.initialize_(seed=0)
    word = model.model.embed_tokens.weight
    before = word.detach().clone()
    optimizer = torch.optim.AdamW(planned.param_groups(lr=0.01), eps=1e-30)
    model(torch.arange(T)[None]).logits.square().sum().backward()
    optimizer.step()
    change = math.sqrt(n) * (word.detach() - before)
    torch.testing.assert_close(change.abs().max().item(), 0.01 * n**-0.5, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("make", "query"), [(t5, "q"), (gpt_neo, "q_proj")])
def test_undivided_scores_have_the_size_of_divided_ones(make: Any, query: str) -> None:
    """Q takes the missing 1/√C: its variance is C_Q / (nC), so that q·k is of order one."""
    n, C = 64, 16
    model = make(n)
    planned = plan(model)
    rows = [row for row in planned.rows if f".{query}." in row.name]
    assert rows
    for row in rows:
        assert row.init_std == pytest.approx((n * C) ** -0.5)
        assert row.lr_factor == pytest.approx(n**-1.5 * C**-0.5)


def test_a_user_can_say_a_scale() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    said = plan(model, overrides={r"0\.weight": Role(group="dense", scale=4.0)})
    unsaid = plan(model)
    assert said["0.weight"].init_std == pytest.approx(unsaid["0.weight"].init_std / 4)
    assert said["0.weight"].lr_factor == pytest.approx(unsaid["0.weight"].lr_factor / 4)
    assert said["0.weight"].sgd_factor == pytest.approx(unsaid["0.weight"].sgd_factor / 16)
