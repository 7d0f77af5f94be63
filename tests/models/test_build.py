from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from orderone.models import LanguageConfig, build
from tests.models.reference import WORDS, encoder_decoder, images, language, vision, words


def test_a_seed_settles_the_weights_and_leaves_the_generator_alone() -> None:
    config = LanguageConfig(**WORDS)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build(config, seed=7)
    assert torch.equal(torch.rand(3), expected)
    second, other = build(config, seed=7), build(config, seed=8)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_without_a_seed_torchs_generator_settles_them() -> None:
    config = LanguageConfig(**WORDS)
    torch.manual_seed(7)
    by_generator = build(config)
    for a, b in zip(by_generator.parameters(), build(config, seed=7).parameters(), strict=True):
        assert torch.equal(a, b)


def test_one_deviation_for_every_weight_and_zero_biases() -> None:
    sizes = {**WORDS, "n": 192, "n_vocab": 200, "T": 100}
    model = build(LanguageConfig(**{**sizes, "init_std": 0.05, "bias": True}), seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
            continue
        # The deviation of k normals has relative standard error 1/√(2k): four of them.
        assert parameter.std().item() == pytest.approx(0.05, rel=4 / (2 * parameter.numel()) ** 0.5)


def test_no_deviation_keeps_pytorchs_defaults() -> None:
    sizes = {**WORDS, "n": 192, "n_vocab": 200, "head_tied": False}
    model: Any = build(LanguageConfig(**{**sizes, "init_std": None, "pad": 3}), seed=0)
    bound = 192**-0.5  # nn.Linear: uniform within ±1/√fan_in
    Q = model.blocks[0].path.Q.weight
    assert 0.99 * bound < Q.abs().max() <= bound
    assert model.stem.word.weight.std().item() == pytest.approx(1.0, abs=0.02)
    assert (model.stem.word.weight[3] == 0).all()


def test_names_of_parameters() -> None:
    decoder = {name for name, _ in encoder_decoder(affine=True, bias=True).named_parameters()}
    assert {
        "word.weight",
        "encoder.stem.position.weight",
        "encoder.stem.norm.weight",
        "encoder.blocks.0.path.Q.weight",
        "encoder.norm.bias",
        "decoder.stem.position.weight",
        "decoder.blocks.1.path.U.bias",
        "decoder.blocks.2.path.X.weight",
        "decoder.norm.weight",
    } < decoder
    assert {name for name, _ in language(encoders=1).named_parameters()} == {
        "stem.word.weight",
        "stem.position.weight",
        *(f"blocks.0.path.{letter}.weight" for letter in "QKVU"),
        *(f"blocks.1.path.{letter}.weight" for letter in "WX"),
    }
    names = {name for name, _ in vision(stem="class-token", affine=True).named_parameters()}
    assert {"stem.patch.weight", "stem.class_token", "blocks.3.norm.bias", "norm.weight"} < names
    assert {"head.W.weight", "head.W.bias"} < names


CASES: list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]] = [
    ("language", language(bias=True), (words(2, 12),)),
    ("language, zero mask", language(mask="zero"), (words(2, 12),)),
    ("vision", vision(), (images(2, 3, 16, 16),)),
    ("encoder-decoder", encoder_decoder(), (words(2, 11), words(2, 9))),
]


def gradients(model: nn.Module, *given: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(0)
    out = model(*given)
    functional.cross_entropy(out.flatten(0, -2), out.detach().flatten(0, -2).argmin(-1)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "model", "given"), CASES, ids=[case[0] for case in CASES])
def test_checkpointing_recomputes_and_gives_the_same_gradients(
    name: str, model: Any, given: tuple[torch.Tensor, ...]
) -> None:
    for block in model.modules():
        if hasattr(block, "dropout"):
            block.dropout = 0.2  # recomputation must draw the same masks
    model.train()
    passes = 0

    def counted(*_: object) -> None:
        nonlocal passes
        passes += 1

    handle = model.stacks()[0][0].path.register_forward_hook(counted)
    plain = gradients(model, *given)
    assert passes == 1
    model.gradient_checkpointing = True
    assert model.gradient_checkpointing
    again = gradients(model, *given)
    assert passes == 3
    model.gradient_checkpointing = False
    handle.remove()
    for block in model.modules():
        if hasattr(block, "dropout"):
            block.dropout = 0.0
    model.eval()
    assert plain.keys() == dict(model.named_parameters()).keys()
    for parameter, gradient in plain.items():
        assert torch.equal(gradient, again[parameter]), parameter


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (language(dropout=0.3), words(200, 12)),
        (vision(dropout=0.3), images(200, 3, 16, 16)),
    ],
)
def test_dropout_acts_in_training_alone_and_at_its_rate(model: Any, given: torch.Tensor) -> None:
    """After the embeddings and after each path: 0.3 of the numbers there are exactly zero."""
    assert torch.equal(model(given), model(given))
    model.train()
    torch.manual_seed(0)
    hidden = model.trace(given).hidden
    added = [hidden[0], *(after - before for before, after in pairwise(hidden))]
    assert len(added) == 5
    for r in added:
        dropped = (r == 0).double().mean().item()
        assert dropped == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / r.numel()) ** 0.5)


def test_attention_dropout_leaves_the_mean_alone() -> None:
    """The mean over dropout masks is the output without dropout: within 5 standard errors."""
    model = language(attention_dropout=0.3)
    path = model.blocks[0].path
    context = model.context(None)
    s = model.stem(words(1, 12))
    expected = path(s, context)
    path.train()
    torch.manual_seed(0)
    k = 2000
    for take in (path.forward, lambda *given: path.trace(*given)[0]):
        draws = take(s.expand(k, -1, -1), context)
        error = draws.std(0) / k**0.5
        assert error.min() > 0
        assert ((draws.mean(0) - expected[0]).abs() < 5 * error).all()
