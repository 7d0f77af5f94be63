"""Saturation against its definition, its controls, and the cases in which it means nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orderone.asymptotics import graded_parameters
from orderone.core.errors import DataError, ModelError
from orderone.core.selection import Selection
from orderone.data.batches import Batch
from orderone.models import EncoderDecoderConfig, LanguageConfig, VisionConfig, build
from orderone.probes.saturation import Saturation, compared, in_range, saturation
from orderone.probes.scaled import scaled
from tests.probes.outside import SIZES, for_kind, outside, padded
from tests.timm_alone import timm_or_skip


def ours(placement: str = "branch", **changes: object) -> nn.Module:
    """Weights of deviation 0.3, so that no layer is nearly the one before it."""
    settings: dict[str, object] = {
        "n": 16,
        "H": 2,
        "encoders": 2,
        "n_vocab": 40,
        "T": 12,
        "bias": True,
        "affine": True,
        "placement": placement,
        "init_std": 0.3,
        "head_tied": False,
        **changes,
    }
    return build(LanguageConfig(**settings), seed=1).double()


def sentences(lengths: tuple[int, ...], *, seed: int = 0, pad: int = 0) -> Batch:
    found = padded(lengths, seed=seed, pad=pad)
    real = found["attention_mask"].bool()
    return Batch(tokens=found["input_ids"], targets=found["input_ids"], real=real)


def figures(found: Saturation) -> list[float]:
    return [
        value
        for each in found.layers
        for value in (each.cosine, each.other, each.cross, each.centred)
        if value is not None
    ]


@torch.no_grad()
def by_hand(model: nn.Module, batch: dict[str, Tensor], c: float) -> list[float]:
    """[MRGSS21] §4.1 one sentence at a time, through a state of its own."""
    model.eval()
    cosines: list[list[float]] = []
    for words, real in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True):
        alone = words[real][None]
        f = model(input_ids=alone, output_hidden_states=True).hidden_states
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        model.load_state_dict({n: c * v if n in names else v for n, v in kept.items()})
        sf = model(input_ids=alone, output_hidden_states=True).hidden_states
        model.load_state_dict(kept)
        for layer, (a, b) in enumerate(zip(f, sf, strict=True)):
            cosines += [[] for _ in range(layer + 1 - len(cosines))]
            cosines[layer] += torch.cosine_similarity(a[0], b[0], dim=-1).tolist()
    return [math.fsum(each) / len(each) for each in cosines]


@pytest.mark.parametrize("c", [64.0, 1000.0])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_padded_batch_is_one_sentence_at_a_time(kind: str, c: float) -> None:
    pad = 0
    model, batch = outside(kind), padded((7, 3, 5), pad=pad)
    found = saturation(model, [batch], c=c)
    assert [each.layer for each in found.layers] == ["0", "1", "2"]
    for level, expected in zip(found.layers, by_hand(model, batch, c), strict=True):
        assert level.cosine == pytest.approx(expected, abs=1e-6)
    assert (found.sentences, found.tokens) == (3, 15)
    assert found.c == c


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_pads_and_batches_change_nothing(kind: str) -> None:
    """Words where padding is, and sentences beside others, to 1e-6."""
    model = outside(kind)
    base = padded((7, 3, 5), pad=0)
    whole = saturation(model, [for_kind(kind, base)])
    assert len(whole.layers) >= 3
    real = base["attention_mask"].bool()
    other = {**base, "input_ids": base["input_ids"].masked_fill(~real, 9)}
    if kind != "roberta":  # which counts positions by what is not its [pad]
        refilled = saturation(model, [for_kind(kind, other)])
        assert figures(refilled) == pytest.approx(figures(whole), abs=1e-6)
    parts = []
    for i, length in ((1, 3), (2, 5), (0, 7)):
        parts.append(for_kind(kind, {k: v[i : i + 1, :length] for k, v in base.items()}))
    split = saturation(model, parts)
    assert figures(split) == pytest.approx(figures(whole), abs=1e-6)
    assert split.layers[-1].se == pytest.approx(whole.layers[-1].se, abs=1e-6)
    assert split.agreement == whole.agreement


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
def test_the_exact_limit_is_approached(placement: str) -> None:
    """1 − |cosine of c = 2^k and c = ∞| falls as k grows, to nothing."""
    model = ours(placement, causal=True)
    batch = sentences((8, 5, 6))
    exact = compared(model, [batch, batch], lambda of: lambda: graded_parameters(of))
    distance = []
    for c in (4.0, 64.0, 1024.0, 2.0**16):
        found = saturation(model, [batch], c=c)
        pairs = zip(found.layers, exact.layers, strict=True)
        distance.append(max(abs(a.cosine - b.cosine) for a, b in pairs))
    assert distance[-1] < 1e-4
    assert distance[-1] < distance[1] < distance[0]
    assert distance[2] < 0.05


class Constant(nn.Module):
    """Blocks that give the same for every word."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.word = nn.Embedding(40, 8)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8)) for _ in range(2)])
        for layer in self.layers:
            nn.init.zeros_(layer[0].weight)
            nn.init.constant_(layer[0].bias, value)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.word(tokens)
        for layer in self.layers:
            z = layer(z)
        return z


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_constant_network_is_collapsed_not_saturated(value: float) -> None:
    found = saturation(Constant(value), [padded((9, 9))["input_ids"]])
    assert found.layers[-1].cosine == pytest.approx(1.0)
    assert found.collapsed
    assert found.said[0].startswith("Collapsed, not saturated")
    assert found.layers[-1].centred is None
    assert not found.layers[0].says_nothing


def test_a_network_that_gives_one_word_is_collapsed_and_a_random_one_is_not() -> None:
    model = ours("post")
    batch = sentences((8, 5))
    before = saturation(model, [batch])
    assert not before.collapsed
    assert before.chance is not None
    assert before.chance < 0.9
    with torch.no_grad():
        model.blocks[-1].norm.weight.zero_()
        model.blocks[-1].norm.bias.normal_()
    after = saturation(model, [batch])
    assert after.collapsed
    assert after.agreement == after.chance == 1.0


def test_a_saturated_network_scores_one_and_passes_its_controls() -> None:
    """Branch placement without biases, at weights 2^12 times those drawn: sf of it is itself."""
    model = ours("branch", bias=False, affine=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**12)
    found = saturation(model, [sentences((8, 5, 6))])
    for each in found.layers:
        assert each.cosine == pytest.approx(1.0, abs=1e-6)
        assert each.centred == pytest.approx(1.0, abs=1e-5)
        assert abs(each.cross or 1.0) < 0.9
    assert not found.collapsed
    assert found.agreement == 1.0


def test_unscaled_parameters_stay() -> None:
    model, batch = ours(), sentences((8, 5))
    found = saturation(model, [batch], selection=Selection())
    with scaled(model, selection=Selection()), torch.no_grad():
        sf = model.trace(batch.tokens, batch.real).hidden[-1][batch.real]
    f = model.trace(batch.tokens, batch.real).hidden[-1][batch.real].detach()
    expected = float(torch.cosine_similarity(f, sf, dim=-1).mean())
    assert found.layers[-1].cosine == pytest.approx(expected, abs=1e-9)
    assert found.layers[0].cosine == pytest.approx(1.0)
    assert abs(saturation(model, [batch]).layers[-1].cosine - expected) > 1e-3


def test_random_initialisations_stand_beside_without_dropout() -> None:
    def fresh(seed: int) -> nn.Module:
        config = LanguageConfig(n=16, H=2, encoders=1, n_vocab=40, T=12, dropout=0.5)
        return build(config, seed=seed).double().train()

    batch = sentences((8, 5))
    found = saturation(fresh(7), [batch], fresh=fresh, seeds=(0, 1))
    again = saturation(fresh(7), iter([batch]), fresh=fresh, seeds=(0, 1))
    assert found.random == again.random
    assert found.random is not None
    alone = [saturation(fresh(seed), [batch]).layers[-1].cosine for seed in (0, 1)]
    assert found.random[-1].cosine == pytest.approx(sum(alone) / 2)
    assert found.random[-1].se == pytest.approx(abs(alone[0] - alone[1]) / 2)
    assert any("random initialisation" in line for line in found.said)


def test_the_breakdown_by_token_adds_up() -> None:
    model, batch = ours(), sentences((8, 5))
    last = saturation(model, [batch], by_token=True).layers[-1]
    assert set(last.by_token) == set(batch.tokens[batch.real].tolist())
    total = sum(count * mean for count, mean in last.by_token.values())
    assert total / 13 == pytest.approx(last.cosine)


def test_modes_weights_and_hooks_are_as_before() -> None:
    model = outside("gpt2").train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    cache = model.config.use_cache
    saturation(model, [padded((5, 3))])
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config.use_cache is cache


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_overflow_is_found_at_its_layer_and_computed_again_in_float32(dtype: torch.dtype) -> None:
    """Without norms values grow as c^degree: float16 ends at the first block, bfloat16 later."""
    torch.manual_seed(0)

    class Growing(Constant):
        def __init__(self) -> None:
            super().__init__(0.0)
            for layer in self.layers:
                nn.init.normal_(layer[0].weight)

    model = Growing().to(dtype)
    c = 32.0 if dtype == torch.float16 else 2.0**20
    words = padded((6, 6))["input_ids"]
    found = saturation(model, [words], c=c)
    name = str(dtype).removeprefix("torch.")
    assert found.notes[0].startswith(f"Hidden states beyond the range of {name} at layer")
    assert "computed again in float32" in found.notes[0]
    wide = Growing().float()
    wide.load_state_dict(model.state_dict())
    expected = saturation(wide, [words], c=c)
    assert figures(found) == pytest.approx(figures(expected), abs=1e-6)


def test_weights_that_overflow_are_computed_again_too() -> None:
    model = Constant(100.0).half()
    found = saturation(model, [padded((6, 6))["input_ids"]])
    assert "times c = 1024 beyond float16" in found.notes[0]


def test_clamped_float16_counts_as_overflow() -> None:
    """T5 and BART clamp float16 1,000 below its largest number."""
    assert not in_range(torch.tensor([64504.0], dtype=torch.float16))
    assert in_range(torch.tensor([60000.0], dtype=torch.float16))
    assert not in_range(torch.tensor([1e19]))
    assert in_range(torch.tensor([1e19], dtype=torch.float64))


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_norms_that_square_in_float32_are_not_believed_in_float64(kind: str) -> None:
    """There hidden states become 0 in silence, and the cosine with them."""
    batch = for_kind(kind, padded((5, 3)))
    for model in (outside(kind), outside(kind).float()):
        with pytest.raises(ModelError, match="float32, in which its norms square, at layer"):
            saturation(model, [batch], c=2.0**30)


def test_images_of_ours_and_both_stacks() -> None:
    vision = build(VisionConfig(n=16, H=2, encoders=1, image_size=16, patch=8, n_out=5), seed=0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 3, 16, 16, generator=generator)
    found = saturation(vision, [(images, torch.zeros(3))])
    assert (found.sentences, found.tokens) == (3, 12)
    assert found.agreement is not None
    pair = build(EncoderDecoderConfig(n=16, H=2, encoders=1, decoders=1, n_vocab=40, T=12), seed=0)
    words, real = sentences((5, 3)).tokens, sentences((5, 3)).real
    batch = {"source": words, "target": words[:, :4], "source_real": real}
    found = saturation(pair, [{**batch, "target_real": real[:, :4]}])
    assert found.layers[0].layer == "encoder.0"
    assert found.layers[-1].layer == "decoder.norm"
    assert found.tokens == 7


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_timm(name: str) -> None:
    timm = timm_or_skip()
    settings = (
        {"img_size": 64} if name.startswith("vit") else {"embed_dim": 24, "num_heads": (1, 2, 4, 8)}
    )
    size = 64 if name.startswith("vit") else 224
    model = (
        timm.create_model(name, depths=(1, 1, 1, 1), **settings)
        if "swin" in name
        else (timm.create_model(name, depth=2, **settings))
    )
    found = saturation(model, [torch.randn(2, 3, size, size)])
    assert found.sentences == 2
    assert len(found.layers) >= 3
    assert all(math.isfinite(each.cosine) for each in found.layers)


class Unmasked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8))])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers[0](nn.functional.one_hot(tokens, 8).float())


def with_nan() -> nn.Module:
    model = ours()
    with torch.no_grad():
        model.blocks[0].path.Q.weight[0, 0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("make", "batches", "kind", "words"),
    [
        (with_nan, [padded((4,))["input_ids"]], ModelError, "NaN or infinite"),
        (lambda: nn.Linear(2, 2), [torch.ones(3, 2)], ModelError, "no hidden states"),
        (ours, [], DataError, "no batch of text"),
        (
            ours,
            [torch.tensor([[41, 3]])],
            DataError,
            "token 41 for a model with a vocabulary of 40",
        ),
        (lambda: outside("gpt2"), [{"input_ids": torch.tensor([[99]])}], DataError, "token 99"),
        (ours, ["text"], DataError, "a batch that is a str"),
        (Unmasked, [sentences((4, 2))], ModelError, "takes no mask"),
        (
            ours,
            [{"tokens": torch.ones(1, 3).long(), "real": torch.zeros(1, 3).bool()}],
            DataError,
            "without a real token",
        ),
    ],
)
def test_bad_input_is_one_line(
    make: Callable[[], nn.Module], batches: list[object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        saturation(make(), batches)
    assert "\n" not in str(caught.value)
