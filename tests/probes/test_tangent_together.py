"""Samples that are taken together have the kernels that they have one after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.probes import tangent_memory
from orderone.probes.tangent import Tangent, tangent
from orderone.probes.tangent_pass import Pass
from orderone.probes.tangent_together import ApartError
from tests.models.reference import encoder_decoder, language, vision
from tests.probes.test_tangent import assert_dense, least_memory, normal, peak, tokens


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why a model could not be run on several samples, each time."""
    seen: list[str] = []
    begin = Pass.__init__

    def noted(self: Pass, *given: Any, **settings: Any) -> None:
        try:
            begin(self, *given, **settings)
        except ApartError as error:
            seen.append(str(error))
            raise

    monkeypatch.setattr(Pass, "__init__", noted)
    return seen


def by(signals: int, model: nn.Module, inputs: Any, **settings: Any) -> Tangent:
    """The kernels with so many rows of a matrix product wanted: 1 takes samples one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tangent_memory, "_SIGNALS", signals)
        return tangent(model.double().eval(), inputs, **settings)


def of_transformers(kind: str) -> tuple[nn.Module, Any]:
    """A small model of random weights and inputs for it; None, None where it is not installed."""
    transformers = pytest.importorskip("transformers")
    common = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 11,
        "pad_token_id": 0,
    }
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    words = {"input_ids": tokens(3, 5, n_vocab=11), "attention_mask": mask}
    torch.manual_seed(0)
    if kind == "BERT":
        return transformers.BertForMaskedLM(transformers.BertConfig(**common)), words
    if kind == "RoBERTa":
        return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**common)), words
    if kind == "Llama":
        config = transformers.LlamaConfig(**common, num_key_value_heads=1, use_cache=False)
        return transformers.LlamaForCausalLM(config), words
    if kind == "GPT-NeoX":
        return transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**common, use_cache=False)
        ), words
    assert kind == "T5"
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=11, use_cache=False
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, words | {"decoder_input_ids": tokens(3, 4, n_vocab=11)}


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "Llama", "GPT-NeoX", "T5"])
@pytest.mark.parametrize("padded", [True, False])
def test_models_of_transformers(kind: str, padded: bool, apart: list[str]) -> None:
    """Rotary and relative positions, grouped queries, tied heads; masks, by whose values they
    choose a path: all samples the same one, or, where some are padded, each its own.
    """
    model, inputs = of_transformers(kind)
    if not padded:
        inputs["attention_mask"].fill_(1)
    outputs = "full" if padded else "mean"
    alone = by(1, model, inputs, outputs=outputs)
    both = by(10**9, model, inputs, outputs=outputs)
    assert bool(apart) == padded
    for group, K in alone.groups.items():
        scale = max(K.abs().max().item(), 1e-12 * alone.total.abs().max().item())
        assert (both.groups[group] - K).abs().max().item() <= 1e-10 * scale, group
    assert both.gradient_size == pytest.approx(alone.gradient_size, rel=1e-10)


def test_a_causal_model_with_padding_against_the_dense_jacobian() -> None:
    model, inputs = of_transformers("Llama")
    assert_dense(model, inputs, output=lambda raw: raw.logits)


@pytest.mark.parametrize("signals", [1, 60, 130, 10**9])
def test_our_models_are_taken_together_in_any_number(signals: int, apart: list[str]) -> None:
    """Five samples by one, two and all, in groups as even as can be."""
    wide = {"bias": True, "affine": True, "encoders": 1}
    cases = [
        (language(n_vocab=9, pad=1, **wide), tokens(5, 4, n_vocab=9)),
        (vision(stem="class-token", head="class-token", n_out=3, **wide), normal(5, 3, 16, 16)),
        (
            encoder_decoder(n_vocab=7, decoders=1, **wide),
            (tokens(5, 4, n_vocab=7), tokens(5, 3, n_vocab=7)),
        ),
    ]
    for model, inputs in cases:
        torch.testing.assert_close(
            by(signals, model, inputs).total, by(1, model, inputs).total, rtol=1e-11, atol=1e-12
        )
    assert apart == []


class Branching(nn.Module):
    """Takes another path for other values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x).tanh() if x.sum() > 0 else self.second(x).exp()


class Collecting(nn.Module):
    """Writes into a tensor that knows of no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        for place in range(x.shape[0]):
            out[place] = self.map(x[place]).tanh()
        return out


class Scaled(torch.autograd.Function):
    """x ∘ g."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, g: Tensor) -> Tensor:
        return x * g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, g = ctx.saved_tensors
        return grads[0] * g, (grads[0] * x).sum(0)


class Unseen(nn.Module):
    """A parameter that goes into a function of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 4)
        self.gain = nn.Parameter(normal(4))

    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(self.map(x).tanh(), self.gain)


class Vectorised(nn.Module):
    """Calls vmap itself, over its heads and hidden from us, with a map that all of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Parameter(normal(3, 4, 4))
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.vmap(lambda W: self.shared(functional.linear(x, W).tanh()))(self.heads)
        return z.square().sum(0)


class Beforehand(nn.Module):
    """A part of the graph is older than the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(normal(4, 4))
        self.doubled = 2 * self.W

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.doubled).tanh()


@pytest.mark.parametrize("model", [Collecting(), Vectorised()])
def test_what_cannot_be_taken_together_is_taken_apart(model: nn.Module, apart: list[str]) -> None:
    assert_dense(model, normal(4, 4))
    assert apart


@pytest.mark.parametrize(("sizes", "differ"), [([1, 2, 3], 0), ([-1, -2, -3], 0), ([1, -1, 2], 1)])
def test_paths_chosen_by_values(sizes: list[int], differ: int, apart: list[str]) -> None:
    """Together where all samples take the same path, whichever it is."""
    x = torch.tensor(sizes, dtype=torch.float64)[:, None] * normal(3, 4).abs()
    model = Branching()
    expected, found = by(1, model, x), by(10**9, model, x)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=0)
    assert bool(apart) == differ


def test_a_function_of_the_models_own(apart: list[str]) -> None:
    assert_dense(Unseen(), normal(3, 4, 3))
    assert apart == []


class Offset(nn.Module):
    """Adds a mapped table, which knows of no samples, to each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(3, 4))
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.outer(x) + self.inner(self.table.sin())).tanh()


@pytest.mark.parametrize("named", [["table", "inner.weight"], ["inner.weight", "inner.bias"]])
def test_a_signal_without_samples(named: list[str], apart: list[str]) -> None:
    """Also where autograd has a path to it from a parameter that is not measured."""
    model, x = Offset(), normal(3, 3, 4)
    groups = {name: (name, 1.0) for name in named}
    expected, found = by(1, model, x, groups=groups), by(10**9, model, x, groups=groups)
    for name in named:
        torch.testing.assert_close(found.groups[name], expected.groups[name], rtol=1e-12, atol=0)
    assert apart == []


def test_a_graph_that_is_older_than_the_pass(apart: list[str]) -> None:
    model, x = Beforehand(), normal(3, 4)
    found = tangent(model, x).total
    slopes = 1 - functional.linear(x, model.doubled).tanh().square()
    torch.testing.assert_close(found, (4 * x @ x.mT * (slopes @ slopes.mT) / 4).detach())
    assert apart == ["a parameter that samples share"]


class Deep(nn.Module):
    """Keeps many signals, and has one output."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for each in self.maps:
            x = each(x).tanh().sin()
        return x.mean((1, 2))[:, None]


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (
            language(n=32, H=2, encoders=1, n_vocab=20, head_tied=False, n_out=6),
            tokens(3, 6, n_vocab=20),
        ),
        (Deep(), normal(4, 64, 16).float()),
    ],
)
def test_memory_holds_for_samples_together(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the least memory with which all are taken together, against every allocation."""
    chosen: list[int] = []
    choose = tangent_memory.samples_together
    monkeypatch.setattr(
        "orderone.probes.tangent.samples_together",
        lambda *given: chosen.append(choose(*given)) or chosen[-1],
    )
    monkeypatch.setattr(tangent_memory, "_SIGNALS", 10**9)
    allowed = least_memory(model, x, "mean") * 2**20
    while not chosen or chosen[-1] < len(x):
        allowed *= 1.2
        tangent(model, x, memory=int(allowed))
    assert peak(lambda: tangent(model, x, memory=int(allowed))) <= allowed


def test_the_first_pass_takes_no_more_than_there_is() -> None:
    """It is of several samples only where there is room for them."""
    model, x = Deep(), normal(8, 64, 16).float()
    least = least_memory(model, x, "mean") * 2**20
    for factor in (1.01, 1.5, 2.0, 4.0):
        allowed = int(factor * least)
        assert peak(lambda: tangent(model, x, memory=allowed)) <= allowed  # noqa: B023
