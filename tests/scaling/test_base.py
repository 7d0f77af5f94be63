"""A base width: there the user's recipe exactly; elsewhere it follows by the rule."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import orderone
from orderone.core.errors import ConfigError, ModelError
from orderone.models import LanguageConfig, VisionConfig, build
from orderone.scaling.plan import Plan


def ours(n: int, output_multiplier: float = 1.0) -> nn.Module:
    config = LanguageConfig(
        n=n,
        H=n // 8,
        encoders=1,
        n_vocab=40,
        T=8,
        bias=True,
        affine=True,
        output_multiplier=output_multiplier,
    )
    return build(config, seed=0)


def vision(n: int) -> nn.Module:
    """PyTorch's default initialisation: uniform, with biases that are not zero."""
    config = VisionConfig(
        n=n, H=n // 8, encoders=1, image_size=16, patch=8, n_out=11, init_std=None, bias=True
    )
    return build(config, seed=0)


def gpt2(n: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(n_embd=n, n_layer=2, n_head=n // 8, vocab_size=40, n_positions=8)
    )


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("make", [ours, vision, gpt2])
def test_at_the_base_nothing_changes(make: Any, s: float) -> None:
    """Factors exactly 1, weights and logits untouched to the bit."""
    model = make(16)
    before = copy.deepcopy(model.state_dict())
    plan = orderone.plan(model, s=s, base_width=16)
    plan.initialize_(seed=5)
    assert {(row.lr_factor, row.sgd_factor, row.start) for row in plan.rows} == {(1.0, 1.0, "keep")}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    groups = plan.param_groups(0.1, 0.2)
    assert {group["lr"] for group in groups} == {0.1}
    assert {group["weight_decay"] for group in groups} <= {0.0, 0.2}


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0])
def test_factors_are_ratios_of_the_rules(s: float) -> None:
    """At 4 times the base: each cell of the absolute plans divided by the base's."""
    wide, narrow = ours(64), ours(16)
    relative = orderone.plan(wide, s=s, base_width=16)
    absolute, base = orderone.plan(wide, s=s), orderone.plan(narrow, s=s)
    for row in relative.rows:
        there, here = base[row.name], absolute[row.name]
        assert row.lr_factor == pytest.approx(here.lr_factor / there.lr_factor)
        assert row.sgd_factor == pytest.approx(here.sgd_factor / there.sgd_factor)
    assert relative["blocks.0.path.Q.weight"].lr_factor == pytest.approx(4 ** (s / 2 - 1.5))
    assert relative.output_multiplier == pytest.approx(4 ** (-(1 + s) / 2))


def test_constants_are_the_base_models_own() -> None:
    """Standard deviation at n0 as measured there, times √(n0/n) of maps, 1 of lookups."""
    wide = gpt2(64)
    plan = orderone.plan(wide, base_width=16, make=gpt2)
    torch.manual_seed(0)
    narrow = dict(gpt2(16).named_parameters())
    for row in plan.rows:
        weights = narrow[row.name].detach()
        if row.role in ("gain", "bias"):
            assert row.start == "keep"
            continue
        expected = float(weights.square().mean().sqrt()) * (1.0 if row.lookup else 0.5)
        assert row.init_std == pytest.approx(expected, rel=1e-5)
    # GPT-2 draws what ends a residual path at 0.02/√(2·layers): kept, tensor by tensor.
    U, W = (plan[f"transformer.h.0.{name}.weight"] for name in ("attn.c_proj", "mlp.c_fc"))
    assert U.init_std is not None
    assert W.init_std is not None
    assert U.init_std / W.init_std == pytest.approx(1 / 2, rel=0.15)


def test_distribution_and_random_biases_follow() -> None:
    """PyTorch's uniform start stays uniform; a bias that is random at n0 is drawn at n."""
    plan = orderone.plan(vision(64), base_width=16, make=vision)
    assert plan["blocks.0.path.Q.weight"].distribution == "uniform"
    assert plan["stem.position.weight"].distribution == "normal"
    bias = plan["blocks.0.path.Q.bias"]
    assert bias.start == "draw"
    assert bias.init_std == pytest.approx(1 / math.sqrt(3 * 16), rel=0.4)
    named = orderone.plan(vision(64), base_width=16, make=vision, distribution="truncated")
    assert {row.distribution for row in named.rows if row.start == "draw"} == {"truncated"}


def test_the_models_own_multiplier_is_the_bases() -> None:
    """A tuned N_rescale of 3 at n0 = 16 becomes 3·(16/64)^1 at s = 1."""
    plan = orderone.plan(ours(64, output_multiplier=3.0), s=1.0, base_width=16)
    assert plan.output_multiplier == pytest.approx(3 / 4)


def test_make_and_configuration_give_the_same_plan() -> None:
    wide = ours(32)
    by_make: Plan = orderone.plan(wide, base_width=16, make=ours)
    by_config = orderone.plan(wide, base_width=16)
    assert [r.lr_factor for r in by_make.rows] == [r.lr_factor for r in by_config.rows]
    assert orderone.plan(wide, base_width=16) == by_config


def test_the_base_leaves_torchs_generator_alone() -> None:
    wide = gpt2(32)
    state = torch.get_rng_state()
    orderone.plan(wide, base_width=16)
    assert torch.equal(torch.get_rng_state(), state)


class Bag(nn.Module):
    def __init__(self, n: int, layers: int = 1) -> None:
        super().__init__()
        self.word = nn.Embedding(9, n)
        self.layers = nn.ModuleList(nn.Linear(n, n) for _ in range(layers))
        self.head = nn.Linear(n, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.word(tokens)
        for layer in self.layers:
            z = layer(z)
        return self.head(z)


def test_a_width_that_nothing_scales_with_is_refused() -> None:
    with pytest.raises(ConfigError, match="base_width = 8, with which no parameter's shape"):
        orderone.plan(ours(16), base_width=8, make=lambda width: ours(16))


def test_a_make_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="width 24 made for base_width = 8"):
        orderone.plan(ours(16), base_width=8, make=lambda width: ours(24))


def test_a_base_of_other_depth_is_refused() -> None:
    wide = gpt2(32)

    def shallow(width: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_embd=width, n_layer=1, n_head=2, vocab_size=40, n_positions=8)
        return GPT2LMHeadModel(config)

    with pytest.raises(ModelError, match=r"12 parameters in only one .* transformer\.h\.1\."):
        orderone.plan(wide, base_width=16, make=shallow)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"base_width": 0}, "base_width = 0"),
        ({"base_width": 16, "constants": "ones"}, "constants together with base_width"),
        ({"make": ours}, "make without base_width"),
    ],
)
def test_impossible_requests_are_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        orderone.plan(ours(32), **arguments)
