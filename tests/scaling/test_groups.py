"""Parameter groups: the update is [DYZ23] (1.94), by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ConfigError
from orderone.models import LanguageConfig, VisionConfig, build
from orderone.scaling.plan import Plan


def language() -> nn.Module:
    config = LanguageConfig(n=12, H=2, encoders=2, n_vocab=10, T=5, bias=True, affine=True)
    return build(config, seed=0)


def vision() -> nn.Module:
    config = VisionConfig(n=16, H=2, encoders=2, image_size=16, patch=8, n_out=7)
    return build(config, seed=0)


def fill_gradients(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("make", [language, vision])
def test_adamw_step_is_the_papers(make: type) -> None:
    """θ ← (1 − η·wd)θ − ηλ̃ m̂/(√v̂ + ε) for every tensor, over two steps; in float64."""
    eta, wd, beta1, beta2, epsilon = 0.3, 0.05, 0.9, 0.99, 1e-6
    model = make().double()
    plan = orderone.plan(model, s=0.3)
    groups = plan.param_groups(eta, wd)
    optimizer = torch.optim.AdamW(groups, betas=(beta1, beta2), eps=epsilon)
    theta = {name: p.detach().clone() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in theta.items()}
    v = {name: torch.zeros_like(p) for name, p in theta.items()}
    for t in (1, 2):
        fill_gradients(model)
        optimizer.step()
        for name, parameter in model.named_parameters():
            g, row = parameter.grad, plan[name]
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            step = (m[name] / (1 - beta1**t)) / ((v[name] / (1 - beta2**t)).sqrt() + epsilon)
            decay = wd if row.role not in ("bias", "gain") else 0.0
            theta[name] = (1 - eta * decay) * theta[name] - eta * row.lr_factor * step
            torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-12, atol=1e-14)


def test_sgd_step_uses_the_other_factors() -> None:
    """θ ← (1 − η·wd)θ − ηλ g, λ of (1.99)–(1.107)."""
    model = vision().double()
    plan = orderone.plan(model, s=0.5)
    theta = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(plan.param_groups(0.2, 0.05, optimizer="sgd"))
    fill_gradients(model)
    optimizer.step()
    for name, parameter in model.named_parameters():
        row = plan[name]
        decay = 0.05 if row.role != "bias" else 0.0
        expected = (1 - 0.2 * decay) * theta[name] - 0.2 * row.sgd_factor * parameter.grad
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-14)
    assert plan["blocks.0.path.Q.weight"].sgd_factor == pytest.approx(16**0.5 / 16)


def test_groups_are_few_and_complete() -> None:
    """One a distinct (factor, decay), every tensor in one of them, names beside the tensors."""
    model = build(LanguageConfig(n=12, H=2, encoders=9, n_vocab=10, T=5, bias=True, affine=True))
    plan = orderone.plan(model)
    groups = plan.param_groups(1.0, 0.1)
    named = {n: p for g in groups for n, p in zip(g["param_names"], g["params"], strict=True)}
    assert named == dict(model.named_parameters())
    kinds = {(f"{row.lr_factor:.10g}", row.decays) for row in plan.rows}
    assert len(groups) == len(kinds) <= 8


def test_decay_times_rate_is_one_product() -> None:
    """lr_factor × decay_factor = 1 where decay applies; groups carry η·wd unchanged."""
    plan = orderone.plan(model := vision(), "hybrid")
    for row in plan.rows:
        assert row.decay_factor * row.lr_factor == pytest.approx(1.0 if row.decays else 0.0)
    for group in plan.param_groups(3.0, 0.02, model=model):
        product = group["lr"] * group["weight_decay"]
        assert product == pytest.approx(0.0 if group["param_names"] == ["head.W.bias"] else 0.06)


def test_positions_and_words_decay_and_head_bias_does_not() -> None:
    plan = orderone.plan(model := language())
    assert plan["stem.word.weight"].decays
    assert plan["stem.position.weight"].decays
    assert not orderone.plan(vision())["head.W.bias"].decays
    undecayed = orderone.plan(model, undecayed=("word",))
    assert not undecayed["stem.word.weight"].decays
    assert undecayed["blocks.0.path.Q.bias"].decays


def test_frozen_parameters_are_in_no_group() -> None:
    model = vision()
    model.get_parameter("stem.position.weight").requires_grad_(False)
    names = [n for g in orderone.plan(model).param_groups(1.0) for n in g["param_names"]]
    assert "stem.position.weight" not in names
    assert len(names) == len(list(model.parameters())) - 1


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", ["lambda", "cosine", "warm-up"])
def test_schedulers_that_scale_keep_the_factors(kind: str) -> None:
    plan = orderone.plan(model := vision())
    optimizer = torch.optim.AdamW(plan.param_groups(2.0, 0.1))
    start, schedulers = rates(optimizer), torch.optim.lr_scheduler
    scheduler = {
        "lambda": lambda: schedulers.LambdaLR(optimizer, lambda t: 1 / (1 + t)),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=9),
        "warm-up": lambda: schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=5),
    }[kind]()
    fill_gradients(model)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
        now = [rate / first for rate, first in zip(rates(optimizer), start, strict=True)]
        assert max(now) == pytest.approx(min(now), rel=1e-9)
    assert now[0] != 1.0


def test_one_cycle_takes_the_plans_list() -> None:
    plan = orderone.plan(model := vision())
    optimizer = torch.optim.AdamW(plan.param_groups(2.0, 0.1))
    alone = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=2.0)
    arguments = {"total_steps": 9}
    ours = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=plan.maxima(2.0), **arguments)
    one = torch.optim.lr_scheduler.OneCycleLR(alone, max_lr=2.0, **arguments)
    fill_gradients(model)
    alone.param_groups[0]["params"][0].grad = torch.ones(1)
    factors = [rate / 2.0 for rate in plan.maxima(2.0)]
    for _ in range(8):
        optimizer.step()
        alone.step()
        ours.step()
        one.step()
        expected = [factor * rates(alone)[0] for factor in factors]
        assert rates(optimizer) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.Adam(groups),
        lambda groups: torch.optim.NAdam(groups),
        lambda groups: torch.optim.RAdam(groups),
        lambda groups: torch.optim.Adafactor(groups),
        lambda groups: torch.optim.AdamW(groups, fused=True),
        lambda groups: torch.optim.RMSprop(groups),
    ],
)
def test_any_torch_optimizer_takes_the_groups(make: type) -> None:
    """Names, too, through the optimizer's own state dict."""
    plan = orderone.plan(model := vision())
    optimizer = make(plan.param_groups(1.0, 0.1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill_gradients(model)
    optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    saved = [name for g in optimizer.state_dict()["param_groups"] for name in g["param_names"]]
    assert sorted(saved) == sorted(before)


@pytest.mark.parametrize("lr", [-1.0, math.nan, math.inf])
def test_impossible_rates_are_one_line(lr: float) -> None:
    plan: Plan = orderone.plan(model := vision())
    with pytest.raises(ConfigError, match="lr = "):
        plan.param_groups(lr, model=model)
    with pytest.raises(ConfigError, match="weight_decay = "):
        plan.param_groups(1.0, lr, model=model)
    with pytest.raises(ConfigError, match="optimizer 'lion'"):
        plan.param_groups(1.0, optimizer="lion", model=model)
