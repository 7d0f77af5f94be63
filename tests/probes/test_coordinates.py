"""Coordinates: signals are exactly what the model's own trace and hand computation say."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ModelError
from orderone.models import LanguageConfig, build
from orderone.probes.coordinates import (
    Place,
    changes,
    forward_signals,
    gradient_sizes,
    gradients,
    rms,
    signals,
    sizes,
)


@pytest.fixture
def model() -> nn.Module:
    config = LanguageConfig(n=16, H=2, encoders=2, T=8, n_vocab=30, init_std=0.5)
    return build(config, seed=0)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(30, (3, 8), generator=torch.Generator().manual_seed(0))


def test_blocks_output_and_maps_are_those_of_the_trace(model: nn.Module, tokens: Tensor) -> None:
    seen = signals(model, lambda: model(tokens))
    traced = model.trace(tokens)  # pyright: ignore[reportCallIssue]  # our models have it
    for index, z in enumerate(traced.hidden[1:]):
        torch.testing.assert_close(seen[Place("block", f"blocks.{index}")], z.detach())
    torch.testing.assert_close(seen[Place("output", "output")], traced.output.detach())
    Q = model.get_submodule("blocks.0.path.Q").weight
    s = functional.layer_norm(traced.hidden[0], (16,))
    torch.testing.assert_close(seen[Place("map", "blocks.0.path.Q")], (s @ Q.T).detach())


def test_logits_are_those_whose_softmax_is_the_attention(model: nn.Module, tokens: Tensor) -> None:
    """Ω of the explicit path from the logits that the fused path never forms, row by row."""
    logits = signals(model, lambda: model(tokens))[Place("logits", "blocks.0.path")]
    Omega = model.trace(tokens).attention[0]  # pyright: ignore[reportCallIssue]  # likewise
    legal = torch.ones(8, 8, dtype=torch.bool).tril().expand_as(Omega)
    scores = torch.full(Omega.shape, -math.inf)
    scores[legal] = logits
    torch.testing.assert_close(scores.softmax(-1), Omega.detach())


def test_the_explicit_path_shows_the_same_logits(model: nn.Module, tokens: Tensor) -> None:
    fused = signals(model, lambda: model(tokens))
    root = nn.ModuleDict({"model": model})
    root.forward = lambda x: model.trace(x).output  # pyright: ignore[reportCallIssue]  # likewise
    explicit = signals(root, lambda: root(tokens))
    logits = [value for place, value in explicit.items() if place.kind == "logits"]
    assert len(logits) == 2
    torch.testing.assert_close(logits[0], fused[Place("logits", "blocks.0.path")])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_of_torchs_own_attention(separate: bool, masked: bool) -> None:
    """nn.MultiheadAttention: the softmax of its logits is the weights that it returns."""
    torch.manual_seed(0)
    sizes_of = {"kdim": 6, "vdim": 5} if separate else {}
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **sizes_of)
    query = torch.randn(3, 4, 8)
    key = torch.randn(3, 7, 6) if separate else torch.randn(3, 7, 8)
    value = torch.randn(3, 7, 5) if separate else key
    mask = torch.ones(4, 7, dtype=torch.bool).triu(2) if masked else None
    settings = {"attn_mask": mask, "average_attn_weights": False}
    _, weights = attention(query, key, value, **settings)
    root = nn.Sequential(nn.Identity())
    root.attention = attention
    root.forward = lambda: attention(query, key, value, **settings)
    logits = signals(root, lambda: root())[Place("logits", "attention")]
    scores = torch.full(weights.shape, -math.inf)
    scores[torch.ones_like(weights, dtype=torch.bool) if mask is None else weights > 0] = logits
    torch.testing.assert_close(scores.softmax(-1), weights.detach())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_transformers_logits_do_not_depend_on_the_kernel(implementation: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        vocab_size=20,
        attn_implementation=implementation,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(12).reshape(2, 6)
    seen = forward_signals(model, lambda: model(tokens))
    weights = None
    if implementation == "eager":
        weights = model(tokens, output_attentions=True).attentions[0]
    (logits,) = (value for place, value in seen.items() if place.kind == "logits")
    legal = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 4, 6, 6)
    assert logits.shape == (2 * 4 * 21,)
    if weights is not None:
        scores = torch.full((2, 4, 6, 6), -math.inf)
        scores[legal] = logits
        torch.testing.assert_close(scores.softmax(-1), weights.detach())
    assert Place("block", "model.layers.0") in seen
    assert seen[Place("output", "output")].shape == (2, 6, 20)


def test_sizes_changes_and_gradients_by_group() -> None:
    before = {Place("map", "a"): torch.tensor([3.0, 4.0])}
    after = {Place("map", "a"): torch.tensor([3.0, 2.0]), Place("map", "b"): torch.ones(1)}
    assert sizes(before) == {Place("map", "a"): pytest.approx(math.sqrt(12.5))}
    assert changes(after, before) == {Place("map", "a"): pytest.approx(math.sqrt(2.0))}
    model = nn.Linear(2, 3)
    (model(torch.tensor([[1.0, 2.0]])).sum() * 2).backward()
    found = gradient_sizes(gradients(model), {"weight": "all", "bias": "all"})
    assert found == {Place("gradient", "all"): pytest.approx(math.sqrt(3 * (4 + 16 + 4) / 9))}
    assert gradient_sizes(gradients(model), {"bias": "b"}) == {Place("gradient", "b"): 2.0}
    assert rms(torch.empty(0)) == 0.0


def test_a_module_that_runs_twice_is_two_signals_and_hooks_are_removed() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"first": self.inner(self.inner(x))}

    model = Twice()
    seen = signals(model, lambda: model(torch.ones(1, 2)))
    assert {place.where for place in seen} == {"inner", "inner (2)", "output"}
    assert not model._forward_hooks
    assert not model.inner._forward_pre_hooks


def test_a_failed_pass_leaves_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError):
        signals(model, lambda: model(torch.ones(1, 3)))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_a_tensor_is_refused() -> None:
    class Silent(nn.Module):
        def forward(self) -> str:
            return "nothing"

    model = Silent()
    with pytest.raises(ModelError, match="without a tensor"):
        signals(model, lambda: model())
