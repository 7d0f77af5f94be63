"""Prediction beside measurement: what is wrong is found, what is right is let through."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from orderone.core.errors import ConfigError
from orderone.experiments.agreement import Agreement, agreement, bias_slope, compared
from orderone.experiments.finite_networks import FiniteNetwork, head_count, measurable, network_seed
from orderone.theory.kernels import BlockKernels, Kernels, kernels
from orderone.theory.spec import KernelSpec
from tests.theory.finite import Dense
from tests.theory.finite import kernel as dense_kernel

C = {"position": 0.3, "Q": 1.2, "K": 0.9, "V": 0.7, "U": 1.3, "W": 1.6, "X": 1.2}
FEW = {"samples": 2**12, "recursions": 8, "by_group": True}
X = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
VISION = KernelSpec(stem="vision", inputs=X.tolist(), C=C, **FEW)
WORDS = [[1, 2, 0], [3, 1, 4]]
LANGUAGE = KernelSpec(stem="language", inputs=WORDS, causal=True, C=C, **FEW)
DECODER = LANGUAGE.replace(
    causal=False, targets=[[2, 5], [1, 6]], decoders=1, pad=0, stem_norm=True, by_group=True
)
SPECS = {
    "vision": VISION,
    "class token": VISION.replace(class_token=True, pool="class", activation="tanh"),
    "pooled, AdamW": VISION.replace(pool="mean", optimizer="adamw"),
    "causal vision, branch": VISION.replace(causal=True, placement="branch", xi=[0.8, 1.2]),
    "post, causal": LANGUAGE.replace(placement="post"),
    "language, AdamW": LANGUAGE.replace(optimizer="adamw", head_tied=False),
    "encoder-decoder": DECODER,
    "encoder-decoder, AdamW": DECODER.replace(optimizer="adamw", head_tied=False),
}


@pytest.fixture(scope="module")
def found() -> Agreement:
    return agreement(VISION, [32, 64, 128], networks=12)


@pytest.mark.parametrize("name", SPECS)
def test_our_networks_agree_with_the_prediction(name: str) -> None:
    found = agreement(SPECS[name], [64], networks=8)
    said = [(e.quantity, e.block, e.overlap, e.excess) for e in found.disagreeing]
    assert not said
    places = {(each.quantity, each.block) for each in found.comparisons}
    blocks = [block.name for block in found.predicted.blocks]
    assert {(q, b) for q in ("G", "F", "Theta") for b in blocks} <= places
    groups = {each.quantity for each in found.comparisons if each.quantity.startswith("Theta of ")}
    assert groups == {f"Theta of {g}" for g in found.predicted.head.by_group}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("class_token", [False, True])
def test_later_patches_are_seen_unless_causal(causal: bool, class_token: bool) -> None:
    network = FiniteNetwork.of(
        VISION.replace(causal=causal, class_token=class_token, head_dim=8), 16
    )
    network.plan.initialize_(seed=0, model=network.model)
    images = network.inputs["images"]
    changed = torch.cat([images[..., :1], -images[..., 1:]], dim=-1)
    before, after = network.model(images), network.model(changed)
    seen = 1 + class_token
    assert torch.equal(before[:, :seen], after[:, :seen]) == causal
    assert not torch.equal(before[:, seen:], after[:, seen:])


def scaled(predicted: Kernels, quantity: str, factor: float) -> Kernels:
    """A prediction that is wrong by a factor at the head."""
    head = predicted.head
    wrong: BlockKernels = replace(head, **{quantity: factor * getattr(head, quantity)})
    return replace(predicted, blocks=(*predicted.blocks[:-1], wrong))


@pytest.mark.parametrize("factor", [0.75, 1.25])
def test_a_prediction_that_is_a_quarter_off_is_found(factor: float) -> None:
    spec = measurable(VISION).replace(head_dim=16, by_group=False)
    network = FiniteNetwork.of(spec, 256)
    runs = [network.measure(network_seed(0, 256, i)) for i in range(12)]
    predicted = kernels(spec)
    assert all(each.agrees for each in compared(predicted, runs, width=256, heads=None))
    wrong = compared(scaled(predicted, "Theta", factor), runs, width=256, heads=None)
    assert [(e.quantity, e.block) for e in wrong if not e.agrees] == [("Theta", "head")]


def test_a_kernel_that_is_not_finite_disagrees(found: Agreement) -> None:
    spec = found.predicted.spec
    run = FiniteNetwork.of(spec, 64).forward(0)
    broken = {key: K * math.nan if key == ("G", 1) else K for key, K in run.items()}
    each = compared(found.predicted, [broken] * 4, width=64, heads=None)
    assert [(e.quantity, e.place) for e in each if not math.isfinite(e.excess)] == [("G", 1)]
    assert not next(e for e in each if (e.quantity, e.place) == ("G", 1)).agrees


def test_one_networks_distance_falls_as_the_root_of_n(found: Agreement) -> None:
    """−½ inside the interval, widened by a tenth: n = 32 has corrections."""
    for place in (("G", "stem"), ("F", "encoder.0.mlp"), ("Theta", "head")):
        slope = found.slopes[place]
        assert slope.low - 0.1 <= -0.5 <= slope.high + 0.1, place
    assert found.slope("Theta", "stem") is None, "SGD's Θ of the stem is exact"


def test_the_seed_is_the_specs_and_draws_are_new() -> None:
    a, b = agreement(VISION, [64], networks=4), agreement(VISION, [64], networks=4)
    assert a.comparisons[0].strays == b.comparisons[0].strays
    other = agreement(VISION.replace(seed=1), [64], networks=4)
    assert other.comparisons[0].strays != a.comparisons[0].strays
    assert len(set(a.comparisons[0].strays)) == 4


def test_our_network_is_the_dense_reference() -> None:
    """Mean G of our models and of dense tensors that share no line: within 4 joint errors."""
    n, draws = 32, 64
    reference = Dense(n=n, c=8, C={"patch": 1.0, "head": 1.0, **C}, T=(3,), M=4, n_out=n)
    theta = reference.draw(draws, 5, torch.Generator().manual_seed(1))
    theirs = [dense_kernel(z) for z in reference.forward(theta, X)]
    network = FiniteNetwork.of(VISION.replace(head_dim=8), n)
    runs = [network.forward(network_seed(0, n, i)) for i in range(draws)]
    for place, G in enumerate(theirs):
        ours = torch.stack([run["G", place] for run in runs])
        joint = ((ours.var(0) + G.var(0)) / draws).sqrt()
        assert ((ours.mean(0) - G.mean(0)).abs() <= 4.5 * joint).all()


def test_a_bias_of_one_over_n_has_slope_minus_one(found: Agreement) -> None:
    """Planted: overlaps of mean 1 + 3/n with a small spread; without it nothing is resolved."""
    at = found.of("G", "stem")

    def planted(bias: float) -> float | None:
        spread = torch.linspace(-1e-3, 1e-3, 12, dtype=torch.float64)
        moved = [replace(e, overlaps=tuple((1 + bias / e.width + spread).tolist())) for e in at]
        slope = bias_slope(moved)
        return None if slope is None else slope.value

    assert planted(3.0) == pytest.approx(-1.0, abs=1e-9)
    assert planted(0.001) is None


@pytest.mark.parametrize(
    ("spec", "widths", "more", "said"),
    [
        (VISION, [], {}, "none and 16 networks"),
        (VISION, [64], {"networks": 3}, "at least 4 networks"),
        (VISION, [65], {"heads": 4}, "width 65 with 4 heads"),
        (VISION.replace(head_dim=8), [64], {"heads": 4}, "leave one out"),
        (VISION.replace(head_dim=7), [64], {}, "heads of 7 channels"),
        (VISION.replace(encoders=0), [64], {}, "without blocks"),
        (LANGUAGE.replace(optimizer="adamw"), [64], {}, "head_tied = false"),
    ],
)
def test_what_cannot_be_compared_is_refused(spec, widths, more, said) -> None:
    with pytest.raises(ConfigError, match=said):
        agreement(spec, widths, **more)


def test_channels_that_all_widths_have(found: Agreement) -> None:
    assert found.predicted.spec.head_dim == 16
    assert agreement(VISION, [24, 60], networks=4, tangents=False).predicted.spec.head_dim == 12
    assert head_count(VISION.replace(head_dim=8), 64) == 8
