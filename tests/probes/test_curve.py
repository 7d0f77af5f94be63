"""Scaling curves against their definition, and what biases change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from orderone.asymptotics import graded_parameters
from orderone.core.errors import ConfigError
from orderone.models import LanguageConfig, build
from orderone.probes.curve import scaling_curve, without_biases
from orderone.probes.saturation import Into
from tests.probes.outside import SIZES, for_kind, outside, padded

CS = (1.0, 3.0, 10.0)


def ours(placement: str, *, bias: bool = True) -> nn.Module:
    config = LanguageConfig(
        n=32,
        H=4,
        encoders=2,
        n_vocab=40,
        T=12,
        bias=bias,
        affine=True,
        placement=placement,
        init_std=None,
        head_tied=False,
    )
    return build(config, seed=1).double()


def exact(model: nn.Module) -> Into:
    return lambda: graded_parameters(model)


@torch.no_grad()
def by_hand(model: nn.Module, batch: dict[str, torch.Tensor], c: float, large: float) -> float:
    """Two copies with all weights multiplied, one pass each, last layer."""
    rows = []
    for factor in (c, large):
        other = copy.deepcopy(model).eval()
        for parameter in other.parameters():
            parameter.mul_(factor)
        trace = other.trace(batch["input_ids"], batch["attention_mask"].bool())
        rows.append(trace.hidden[-1][batch["attention_mask"].bool()])
    return float(torch.cosine_similarity(*rows, dim=-1).mean())


@pytest.mark.parametrize("placement", ["branch", "post"])
def test_points_are_two_scaled_copies_compared(placement: str) -> None:
    model, batch = ours(placement), padded((8, 5, 6))
    given = [{"tokens": batch["input_ids"], "real": batch["attention_mask"].bool()}]
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    curve = scaling_curve(model, given, cs=CS)
    limit = scaling_curve(model, given, cs=CS, limit=exact)
    for point, true, c in zip(curve, limit, CS, strict=True):
        assert point.c == true.c == c
        found, limiting = point.layers[-1].cosine, true.layers[-1].cosine
        assert found == pytest.approx(by_hand(model, batch, c, 1024.0), abs=1e-9)
        assert limiting == pytest.approx(by_hand(model, batch, c, 2.0**20), abs=1e-4)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_biases_hold_branch_placement_back() -> None:
    """Without them the same network, not another, is nearly homogeneous at c = 10."""
    model, batch = ours("branch"), padded((8, 5, 6))
    given = [{"tokens": batch["input_ids"], "real": batch["attention_mask"].bool()}]
    bare = without_biases(model)
    assert all(
        float(p.detach().abs().sum()) == 0 for n, p in bare.named_parameters() if "bias" in n
    )
    assert any(
        float(p.detach().abs().sum()) > 0 for n, p in model.named_parameters() if "bias" in n
    )
    (with_biases,) = scaling_curve(model, given, cs=[10.0], limit=exact)
    (without,) = scaling_curve(bare, given, cs=[10.0], limit=exact)
    built_bare = ours("branch", bias=False)
    built_bare.load_state_dict(
        {n: p for n, p in bare.state_dict().items() if n in built_bare.state_dict()}
    )
    (built,) = scaling_curve(built_bare, given, cs=[10.0], limit=exact)
    assert without.layers[-1].cosine == pytest.approx(built.layers[-1].cosine, abs=1e-9)
    assert 1 - without.layers[-1].cosine < 0.5 * (1 - with_biases.layers[-1].cosine)


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_any_model_ends_at_its_saturated_network(kind: str) -> None:
    curve = scaling_curve(outside(kind), [for_kind(kind, padded((7, 3)))], cs=[1.0, 512.0])
    assert curve[-1].layers[-1].cosine == pytest.approx(1.0, abs=0.02)
    assert curve[-1].layers[-1].cosine >= curve[0].layers[-1].cosine


def test_a_narrow_type_is_widened() -> None:
    model = ours("branch").half()
    (point,) = scaling_curve(model, [padded((6, 6))["input_ids"]], cs=[10.0])
    (expected,) = scaling_curve(model.float(), [padded((6, 6))["input_ids"]], cs=[10.0])
    assert "computed again in float32" in point.notes[0]
    assert point.layers[-1].cosine == pytest.approx(expected.layers[-1].cosine, abs=1e-3)


@pytest.mark.parametrize("cs", [[], [0.5], [1.0, -2.0], [2048.0]])
def test_impossible_numbers_are_refused(cs: list[float]) -> None:
    with pytest.raises(ConfigError, match="from 1 to 1024"):
        scaling_curve(ours("branch"), [padded((4,))["input_ids"]], cs=cs)
