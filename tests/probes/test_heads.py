"""Positions attended: heads made by hand, masks that hold and masks that leak."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.data.batches import Batch
from orderone.models import EncoderDecoderConfig, LanguageConfig, VisionConfig, build
from orderone.probes.heads import HeadLook, heads, upper_mode
from orderone.probes.scaled import scaled
from orderone.probes.weights import attention_weights
from tests.probes.outside import SIZES, for_kind, outside, padded
from tests.timm_alone import timm_or_skip

T = 7


class ByHand(nn.Module):
    """One attention whose heads' scores, c² times these, are given: (h, t, t)."""

    def __init__(self, scores: Tensor, *, hidden: float = -math.inf, causal: bool = True) -> None:
        super().__init__()
        root = scores.abs().sqrt()
        self.root = nn.Parameter(root)
        self.register_buffer("sign", scores.sign())
        self.hidden, self.causal = hidden, causal
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(1, 1))])

    def forward(self, tokens: Tensor) -> Tensor:
        b, t = tokens.shape
        scores = (self.sign * self.root**2)[:, :t, :t].expand(b, -1, -1, -1)
        if self.causal:
            future = torch.ones(t, t, dtype=torch.bool).triu(1)
            scores = scores + torch.zeros(t, t).masked_fill(future, self.hidden)
        return self.layers[0](functional.softmax(scores, dim=-1).sum(dim=(1, 3))[..., None])


def words(b: int = 2, t: int = T) -> Tensor:
    return torch.arange(b * t).view(b, t) % 5


def the(model: nn.Module, batch: object = None, **settings: object) -> list[HeadLook]:
    return list(heads(model, [words() if batch is None else batch], **settings).heads)


def test_arg_max_counts_one_and_a_mean_counts_t() -> None:
    """Equal scores: row t attends to its t positions, (T + 1)/2 on average."""
    to_first = torch.zeros(T, T)
    to_first[:, 0] = 9.0
    to_itself = 0.3 * torch.eye(T)
    to_previous = 9.0 * torch.eye(T).roll(-1, dims=1)
    to_previous[0] = 0.0
    found = the(ByHand(torch.stack([torch.zeros(T, T), to_first, to_itself, to_previous])))
    mean, first, itself, previous = found
    assert mean.saturated_positions == (T + 1) / 2
    assert mean.effective_positions == pytest.approx((T + 1) / 2, abs=1e-6)
    assert (mean.whole_prefix, mean.single, mean.kind) == (1.0, 0.0, "mean")
    for each in (first, itself, previous):
        assert (each.saturated_positions, each.single, each.whole_prefix) == (1.0, 1.0, 0.0)
    assert (first.kind, first.first, first.before) == ("first token", 1.0, 1.0)
    assert first.distance == pytest.approx(sum(range(1, T)) / (T - 1))
    assert (itself.kind, itself.distance, itself.itself) == ("mean at c = 1", 0.0, 1.0)
    assert (previous.before, previous.distance) == (1.0, 1.0)
    assert previous.first == pytest.approx(1 / (T - 1))
    assert all(each.legal_positions == pytest.approx((T + 1) / 2) for each in found)


def test_a_few_ties_lie_in_between() -> None:
    scores = torch.zeros(1, T, T)
    scores[:, :, :2] = 3.0
    (found,) = the(ByHand(scores, causal=False))
    assert (found.saturated_positions, found.between, found.kind) == (2.0, 1.0, "between")
    assert found.legal_positions == T
    weights = torch.tensor([math.exp(3)] * 2 + [1.0] * (T - 2), dtype=torch.float64)
    entropy = float(torch.distributions.Categorical(weights).entropy())
    assert found.entropy == pytest.approx(entropy, rel=1e-5)
    assert found.effective_positions == pytest.approx(math.exp(entropy), rel=1e-5)


def test_a_sharp_head_is_arg_max_at_one_too() -> None:
    (found,) = the(ByHand(30.0 * torch.eye(T)[None]))
    assert (found.kind, found.single) == ("arg max", 1.0)
    assert found.entropy < 0.01


def test_a_mask_that_scores_outweigh_is_refused() -> None:
    """A future at −100 is masked at c = 1 and not at 1024."""
    scores = torch.full((1, T, T), -1.0)
    model = ByHand(scores, hidden=-100.0)
    with pytest.raises(ModelError, match=r"weight .* on a future position at layer"):
        the(ByHand(torch.triu(torch.ones(1, T, T), 1), hidden=-100.0))
    assert the(model)[0].whole_prefix == 1.0


def zero_masked(length: int, *, positive: bool = False) -> nn.Module:
    """mask="zero", and scores below 0 that are all different (above, where told)."""
    config = LanguageConfig(
        n=8,
        H=2,
        encoders=1,
        n_vocab=5,
        T=length,
        bias=True,
        mask="zero",
        placement="branch",
    )
    model = build(config, seed=0).double()
    path = model.blocks[0].path
    with torch.no_grad():
        for parameter in (path.Q.weight, path.K.weight):
            parameter.zero_()
        model.stem.word.weight.zero_()
        model.stem.position.weight.zero_()
        model.stem.position.weight[:, 0] = model.stem.position.weight[:, 4] = torch.linspace(
            1.0, 2.0, length
        )
        path.Q.bias.fill_(1.0)
        path.K.bias.zero_()
        path.K.weight[:, 0] = path.K.weight[:, 4] = 1.0 if positive else -1.0
    return model


def test_under_the_zero_mask_a_row_of_negative_scores_counts_exactly_its_future() -> None:
    """[MRGSS21] Fig. 3's upper mode: 41.012 at T = 83, where a mean would give 42."""
    length = 83
    assert upper_mode(length) == pytest.approx(41.0120, abs=1e-4)
    found = the(zero_masked(length), torch.zeros(1, length, dtype=torch.long))
    for each in found:
        assert each.saturated_positions == pytest.approx(upper_mode(length), abs=1e-12)
        assert each.future == pytest.approx(length * (length - 1) / 2 / length)
        assert each.legal == pytest.approx(1 / length)
        assert each.pad == 0.0
        # The last row has no future, and the one before it has a single position there.
        assert each.whole_future == pytest.approx((length - 2) / length)
        assert each.kind == "future mean"
    positive = the(zero_masked(length, positive=True), torch.zeros(1, length, dtype=torch.long))
    assert all((each.saturated_positions, each.future) == (1.0, 0.0) for each in positive)


def test_as_coded_counts_padding_and_its_rows_as_written_does_not() -> None:
    length, real = 6, torch.arange(6)[None] < torch.tensor([[4]])
    tokens = torch.zeros(1, length, dtype=torch.long)
    batch = Batch(tokens=tokens, targets=tokens, real=real)
    model = zero_masked(length)
    written = the(model, batch)[0]
    assert written.pad == 0.0
    assert written.future == pytest.approx((3 + 2 + 1 + 0) / 4)
    coded = the(model, batch, as_coded=True)[0]
    assert coded.saturated_positions == pytest.approx(upper_mode(length))
    assert coded.future == pytest.approx((3 + 2 + 1) / length)
    assert coded.pad == pytest.approx((2 + 2 + 2 + 2 + 1 + 0) / length)
    assert coded.whole_future == pytest.approx((length - 2) / length)
    with pytest.raises(ConfigError, match="mask is true"):
        the(outside("gpt2"), padded((4,)), as_coded=True)


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_weights_are_transformers_own(kind: str) -> None:
    """Through fused kernels as through eager ones, which give their weights."""
    model, batch = outside(kind), for_kind(kind, padded((5, 3)))
    seen: list[Tensor] = []
    with attention_weights(model, lambda _, Omega: seen.append(Omega)), torch.no_grad():
        model(**batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    if kind in ("t5", "bart"):
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        own = [*output.encoder_attentions, *(x for pair in pairs for x in pair)]
    else:
        own = list(output.attentions)
    assert len(seen) == len(own)
    real = batch["attention_mask"].bool()
    for mine, theirs in zip(seen, own, strict=True):
        a, b = (x.transpose(1, 2)[real] for x in (mine, theirs))
        assert torch.allclose(a.double(), b.double(), atol=1e-6)


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_pads_never_count_and_batches_change_nothing(kind: str) -> None:
    model, base = outside(kind), padded((7, 3, 5))
    whole = heads(model, [for_kind(kind, base)]).heads
    parts = []
    for i, length in ((1, 3), (0, 7), (2, 5)):
        parts.append(for_kind(kind, {k: v[i : i + 1, :length] for k, v in base.items()}))
    split = heads(model, parts).heads
    assert len(whole) == len(split) >= 4
    for a, b in zip(whole, split, strict=True):
        assert (a.layer, a.head, a.kind) == (b.layer, b.head, b.kind)
        for name in ("saturated_positions", "single", "entropy", "spread", "distance"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-6), name
        assert a.saturated_positions >= 1.0
    legal = {each.layer: each.legal_positions for each in whole}
    all_seen, past = (49 + 9 + 25) / 15, (28 + 6 + 15) / 15
    expected = past if kind in ("gpt2", "llama") else all_seen
    assert next(iter(legal.values())) == pytest.approx(expected)
    if kind in ("t5", "bart"):
        assert legal["decoder.1"] == pytest.approx(past)
        assert legal["decoder.1.cross"] == pytest.approx(all_seen)


def test_ours_against_the_trace() -> None:
    config = LanguageConfig(
        n=16, H=2, encoders=2, n_vocab=40, T=12, bias=True, init_std=0.3, placement="branch"
    )
    model = build(config, seed=0).double()
    found = padded((9, 5))
    tokens, real = found["input_ids"], found["attention_mask"].bool()
    looks = heads(model, [Batch(tokens=tokens, targets=tokens, real=real)]).heads
    with scaled(model), torch.no_grad():
        saturated = model.trace(tokens, real).attention
    with torch.no_grad():
        plain = model.trace(tokens, real).attention
    assert [each.layer for each in looks] == ["0", "0", "2", "2"]
    for i, look in enumerate(looks):
        Omega = saturated[i // 2][:, i % 2][real]
        assert look.saturated_positions == pytest.approx(
            float((Omega > 1e-5).sum(-1).double().mean())
        )
        rows = plain[i // 2][:, i % 2][real]
        assert look.entropy == pytest.approx(float(torch.special.entr(rows).sum(-1).mean()))


def test_both_stacks_of_ours_and_images() -> None:
    config = EncoderDecoderConfig(n=16, H=2, encoders=1, decoders=1, n_vocab=40, T=12)
    model = build(config, seed=0)
    found = padded((6, 3))
    tokens, real = found["input_ids"], found["attention_mask"].bool()
    batch = {"source": tokens, "target": tokens[:, :4], "source_real": real}
    looks = heads(model, [{**batch, "target_real": real[:, :4]}]).heads
    assert [each.layer for each in looks[::2]] == ["encoder.0", "decoder.0", "decoder.1.cross"]
    legal = [each.legal_positions for each in looks[::2]]
    assert legal == pytest.approx([45 / 9, (10 + 6) / 7, (4 * 6 + 3 * 3) / 7])
    vision = build(VisionConfig(n=16, H=2, encoders=1, image_size=16, patch=8, n_out=5), seed=0)
    (first, _) = heads(vision, [torch.randn(2, 3, 16, 16)]).heads
    assert first.legal_positions == 4.0


def test_torch_and_timm() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = heads(model, [torch.randn(2, 5, 8)]).heads
    assert [each.layer for each in found] == ["0", "0", "1", "1"]
    assert all(each.legal_positions == 5.0 for each in found)
    timm = timm_or_skip()
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    (first, *_) = heads(vit, [torch.randn(2, 3, 32, 32)]).heads
    assert first.legal_positions == 5.0


def test_hooks_modes_and_weights_are_as_before() -> None:
    model = outside("gpt2").train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    heads(model, [padded((5, 3))])
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_overflow_is_computed_again_in_a_wider_type() -> None:
    model = outside("gpt2").half()
    found = heads(model, [padded((5, 3))])
    assert any("again in float32" in note for note in found.notes)
    assert found.said[-1] == found.notes[-1]


class Leaky(nn.Module):
    """Takes a mask and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(40, 8)
        self.layers = nn.ModuleList([nn.ModuleDict({"a": nn.Linear(8, 8)})])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.layers[0]["a"](self.word(input_ids))[:, None]
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("model", "batches", "kind", "words"),
    [
        (nn.Linear(2, 2), [torch.ones(3, 2)], ModelError, "no attention in a Linear"),
        (Leaky(), [padded((5, 3))], ModelError, "on padding at layer"),
        (nn.Linear(2, 2), [], DataError, "no batch of text"),
    ],
)
def test_bad_input_is_one_line(
    model: nn.Module, batches: list[object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        heads(model, batches)
    assert "\n" not in str(caught.value)
