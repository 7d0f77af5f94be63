from typing import Any

import pytest
import torch

from orderone.core.errors import ConfigError
from orderone.models import LanguageTransformer
from tests.models.reference import dense_attention, dense_norm, gpt2, language, words

GPT2 = {"bias": True, "affine": True, "activation": "gelu-tanh"}


def test_gpt2_with_our_weights_gives_our_outputs() -> None:
    ours, tokens = language(**GPT2), words(3, 12)
    with torch.no_grad():
        expected = gpt2(ours)(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.trace(tokens).output, expected, atol=1e-4, rtol=0)


def test_gpt2_pads_what_we_pad() -> None:
    ours, tokens = language(**GPT2), words(2, 12)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[0, 7:] = False
    with torch.no_grad():
        expected = gpt2(ours)(tokens, attention_mask=real.long()).logits
    torch.testing.assert_close(ours(tokens, real)[real], expected[real], atol=1e-4, rtol=0)


def outputs(model: LanguageTransformer, path: str, *given: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(*given) if path == "fast" else model.trace(*given).output


@pytest.mark.parametrize("path", ["fast", "explicit"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_future_never_reaches_the_past(path: str, padded: bool) -> None:
    model, tokens = language(), words(2, 12)
    given = [torch.ones(2, 12, dtype=torch.bool)] if padded else []
    before = outputs(model, path, tokens, *given)
    for t in range(11):
        changed = tokens.clone()
        changed[:, t + 1 :] = (tokens[:, t + 1 :] + 1) % 31
        after = outputs(model, path, changed, *given)
        assert torch.equal(after[:, : t + 1], before[:, : t + 1])
        assert not torch.equal(after[:, t + 1], before[:, t + 1])


@pytest.mark.parametrize("path", ["fast", "explicit"])
def test_a_bidirectional_model_reads_the_future(path: str) -> None:
    model, tokens = language(causal=False), words(1, 12)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 31
    moved = outputs(model, path, changed) - outputs(model, path, tokens)
    assert (moved.abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("path", ["fast", "explicit"])
def test_the_zero_mask_leaks_the_future(path: str) -> None:
    """[MRGSS21]'s code: exp(0) of weight for each future position, whose values get through."""
    model, tokens = language(mask="zero"), words(1, 12)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 31
    moved = outputs(model, path, changed) - outputs(model, path, tokens)
    assert (moved.abs().amax(-1) > 1e-4).all()


def test_the_zero_mask_gives_future_positions_equal_weight() -> None:
    for Omega in language(mask="zero").trace(words(2, 12)).attention:
        for t in range(11):
            future = Omega[:, :, t, t + 1 :]
            assert (future > 0).all()
            torch.testing.assert_close(future, future[..., :1].expand_as(future))


@pytest.mark.parametrize("path", ["fast", "explicit"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pads", [slice(8, 12), slice(0, 4), slice(3, 6)])
def test_what_a_pad_holds_never_matters(path: str, causal: bool, pads: slice) -> None:
    model, tokens = language(causal=causal), words(2, 12)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[1, pads] = False
    changed = torch.where(real, tokens, (tokens + 1) % 31)
    before, after = outputs(model, path, tokens, real), outputs(model, path, changed, real)
    assert torch.equal(before[real], after[real])
    assert not torch.equal(before[~real], after[~real])
    assert before.isfinite().all()


@pytest.mark.parametrize("mask", ["infinite", "zero"])
def test_pads_take_no_attention_and_rows_of_nothing_give_no_nan(mask: str) -> None:
    model, tokens = language(mask=mask), words(2, 12)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[0, :5] = False  # causal queries 0 … 4 have no legal key
    real[1] = False
    for Omega in model.trace(tokens, real).attention:
        assert (Omega.movedim(-1, 1)[~real] == 0).all()
        full = Omega.sum(-1)[0, :, 5:]
        torch.testing.assert_close(full, torch.ones_like(full))
    for output in (model(tokens, real), model.trace(tokens, real).output):
        model.zero_grad()
        output.square().sum().backward()
        assert output.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention_power", [0.5, 1.0])
@pytest.mark.parametrize("left", [None, 0, 4])
def test_both_paths_agree(causal: bool, attention_power: float, left: int | None) -> None:
    model = language(causal=causal, attention_power=attention_power, bias=True, affine=True)
    tokens, real = words(2, 12), None
    if left is not None:
        real = torch.ones(2, 12, dtype=torch.bool)
        real[0, left : left + 5] = False
    torch.testing.assert_close(
        model(tokens, real), model.trace(tokens, real).output, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
@pytest.mark.parametrize("attention_power", [0.5, 1.0])
def test_dense_reference(placement: str, attention_power: float) -> None:
    """Every z of the three placements, from the formulas, a query at a time in float64."""
    xi = (1.0, 0.5, 0.8, 1.2)
    model = language(
        placement=placement, attention_power=attention_power, xi=xi, output_multiplier=0.3
    ).double()
    tokens = words(1, 7)
    traced = model.trace(tokens)
    z = model.stem.word.weight[tokens[0]] + model.stem.position.weight[:7]
    legal = torch.ones(7, 7).tril() > 0
    for block, skip, hidden in zip(model.blocks, xi, traced.hidden[1:], strict=True):
        s = dense_norm(z, 1e-5) if placement == "pre" else z
        path = block.path
        if hasattr(path, "Q"):
            r = dense_attention(path, s, s, legal, attention_power)
        else:
            w = s @ path.W.weight.T
            r = (w * 0.5 * (1 + torch.erf(w / 2**0.5))) @ path.X.weight.T
        r = dense_norm(r, 1e-5) if placement == "branch" else r
        z = skip * z + r
        z = dense_norm(z, 1e-5) if placement == "post" else z
        torch.testing.assert_close(hidden[0], z, atol=1e-10, rtol=1e-10)
    s = dense_norm(z, 1e-5) if placement == "pre" else z
    expected = 0.3 * s @ model.stem.word.weight.T
    torch.testing.assert_close(traced.output[0], expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(model(tokens)[0], expected, atol=1e-10, rtol=1e-10)


def test_an_untied_head_multiplies_before_its_bias() -> None:
    model = language(head_tied=False, head_bias=True, n_out=4, output_multiplier=0.25)
    tokens = words(1, 6)
    s = model.norm(model.trace(tokens).hidden[-1])
    expected = 0.25 * s @ model.head.W.weight.T + model.head.W.bias
    torch.testing.assert_close(model(tokens), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
def test_the_last_norm_can_be_asked_for(placement: str, final_norm: bool) -> None:
    model = language(placement=placement, final_norm=final_norm)
    tokens = words(1, 6)
    z = model.trace(tokens).hidden[-1]
    s = dense_norm(z, 1e-5) if final_norm else z
    torch.testing.assert_close(model(tokens), s @ model.stem.word.weight.T, atol=1e-4, rtol=1e-4)


def test_too_long_a_sequence_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"13 tokens; expected at most T = 12 positions"):
        language()(words(1, 13))
