"""Our own transformers, in all three placements of the layer norm."""

import pytest
import torch

from orderone.asymptotics import degrees, graded_parameters, saturated
from orderone.models import (
    EncoderDecoderConfig,
    LanguageConfig,
    LanguageTransformer,
    VisionConfig,
    build,
)
from tests.asymptotics.networks import error_at, limits, randomized, slope

WORDS = torch.tensor([[3, 7, 3, 3, 12, 7, 4], [1, 2, 3, 4, 5, 6, 7]])
REAL = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
SHAPE = {"n": 16, "H": 4, "encoders": 2}
TEXT = {"T": 7, "n_vocab": 20}


def language(**settings) -> LanguageTransformer:
    config = LanguageConfig(**SHAPE, **TEXT, **settings)
    model = randomized(build(config, seed=0))
    assert isinstance(model, LanguageTransformer)
    return model


# Degrees of z: of the stem, then after attention, MLP, attention, MLP.
DEGREES = {
    ("pre", True): [1, 3, 3, 3, 3],
    ("pre", False): [1, 2, 2, 2, 2],
    ("branch", True): [1, 1, 1, 1, 1],
    ("branch", False): [1, 1, 1, 1, 1],
    ("post", True): [1, 1, 1, 1, 1],
    ("post", False): [1, 0, 0, 0, 0],
}


@pytest.mark.parametrize(("placement", "bias"), list(DEGREES))
def test_hidden_states_and_attention_approach_the_limit(placement, bias):
    model = language(placement=placement, bias=bias, affine=bias)

    def call(model):
        trace = model.trace(WORDS, REAL)
        return [*trace.hidden, trace.output, *trace.attention]

    found, _ = limits(model, call)
    assert [each.degree for each in found[:5]] == DEGREES[placement, bias]
    assert all(each.degree == 0 for each in found[6:])
    assert error_at(model, call, found, 1e5) < 1e-4


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
def test_vision_and_encoder_decoder_approach_the_limit(placement):
    settings = {**SHAPE, "placement": placement, "bias": True, "affine": True}
    vision = VisionConfig(**settings, image_size=8, patch=4, n_out=5, stem="class-token")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    both = EncoderDecoderConfig(**settings, **TEXT, decoders=1, pad=0)
    cases = [
        (build(vision, seed=0), lambda m: [m(pixels)]),
        (build(both, seed=0), lambda m: [m(WORDS, WORDS, REAL, REAL)]),
    ]
    for model, call in cases:
        found, _ = limits(randomized(model), call)
        assert found[0].degree == 2
        errors = {c: error_at(model, call, found, c) for c in (1e4, 1e5)}
        assert slope(errors) == pytest.approx(-1, abs=0.1)


def test_branch_placement_without_biases_has_degree_1():
    """[MRGSS21] App. D: layer norms without gain on the branches leave the skip alone."""
    trace = degrees(language(placement="branch"), WORDS)
    assert [trace.degree_of(f"blocks.{i}") for i in range(4)] == [1] * 4


def test_pre_placement_dominates_its_first_skip():
    trace = degrees(language(placement="pre", bias=True, affine=True), WORDS)
    joins = [line for line in trace.lines if line.operation == "add" and line.module == "blocks.0"]
    assert [(each.degree, each.note) for each in joins] == [(3, "degree 1 is dominated")]
    assert sorted(origin.degree for origin in joins[0].inputs) == [1, 3]


def test_the_saturated_network_is_homogeneous_to_the_bit():
    """sf(x; 2θ) = 2^k sf(x; θ): doubling is exact in floating point."""
    model = language(placement="branch", bias=True, affine=True)
    before = saturated(model, WORDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    after = saturated(model, WORDS)
    assert torch.equal(after.lead, before.lead * 2 ** int(before.degree))


def test_parameters_left_unscaled_stay_data():
    model = language(placement="branch", bias=True, affine=True)
    alone = degrees(model, WORDS, scaled=["stem.word.weight"])
    assert alone.degree == 2  # the tied head is the same tensor
    with graded_parameters(model, scaled=lambda name: name.startswith("blocks.0.path.U")) as trace:
        model(WORDS)
    assert trace.degree_of("blocks.0.path") == 1
    assert trace.degree_of("blocks.0.norm") == 0


def test_the_model_is_left_as_it_was():
    model = language(placement="pre")
    before = dict(model.named_parameters())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    with pytest.raises(IndexError), graded_parameters(model):
        model(WORDS + 20)
    assert dict(model.named_parameters()) == before
    assert all(model.get_parameter(name) is each for name, each in before.items())
    after = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert after == hooks
