"""Initial weights: exact deviations, fixed by seed and name alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ModelError
from orderone.models import LanguageConfig, VisionConfig, build
from orderone.scaling.constants import DISTRIBUTIONS, Distribution
from orderone.scaling.initialize import drawn, initialize_
from orderone.scaling.roles import Start
from orderone.scaling.row import Row


def row(name: str, shape: tuple[int, ...], *, start: Start = "draw", **changes: Any) -> Row:
    base = Row(
        name=name,
        shape=shape,
        role="Q",
        fan_in=shape[-1],
        fan_out=shape[0],
        lookup=False,
        head=False,
        start=start,
        init_std=0.3,
        distribution="normal",
        lr_factor=1.0,
        sgd_factor=1.0,
        decays=True,
        reason="said so",
    )
    return replace(base, **changes)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_deviation_is_the_target(distribution: Distribution) -> None:
    """Mean within 5σ/√k of 0; mean square within 5√(κ−1)/√k of σ², κ < 3 the kurtosis."""
    std, k = 0.37, 400_000
    weights = drawn((k,), std, distribution, torch.Generator().manual_seed(3)).double()
    assert abs(float(weights.mean())) < 5 * std / math.sqrt(k)
    assert abs(float(weights.square().mean()) / std**2 - 1) < 5 * math.sqrt(2 / k)


def test_distributions_have_their_shapes() -> None:
    """Largest of 400,000 in deviations: uniform √3, truncated 2/0.8796, normal beyond 4."""
    peak = {
        name: float(drawn((400_000,), 1.0, name, torch.Generator().manual_seed(3)).abs().max())
        for name in DISTRIBUTIONS
    }
    assert peak["uniform"] == pytest.approx(math.sqrt(3), rel=1e-4)
    assert peak["truncated"] == pytest.approx(2 / 0.87962566, rel=1e-3)
    assert peak["normal"] > 4


def test_numbers_depend_on_seed_and_name_alone() -> None:
    """Any order, beside any others, whatever torch's own generator: the same bits."""
    rows = [row("a", (3, 4)), row("b", (3, 4)), row("c", (5,))]

    def drawn_in(order: list[Row], seed: int) -> dict[str, torch.Tensor]:
        parameters = {r.name: nn.Parameter(torch.randn(r.shape)) for r in order}
        initialize_(parameters, order, seed=seed)
        return {name: p.detach() for name, p in parameters.items()}

    first, again = drawn_in(rows, 0), drawn_in([rows[2], rows[0]], 0)
    assert all(torch.equal(first[name], again[name]) for name in again)
    assert not torch.equal(first["a"], first["b"])
    assert not torch.equal(first["a"], drawn_in(rows, 1)["a"])


def test_twice_is_once_and_no_generator_is_moved() -> None:
    model = build(LanguageConfig(n=16, H=2, encoders=1, n_vocab=11, T=5, pad=0), seed=1)
    plan = orderone.plan(model)
    state = torch.get_rng_state()
    plan.initialize_(seed=4)
    once = copy.deepcopy(model.state_dict())
    plan.initialize_(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, once[name]) for name, value in model.state_dict().items())


def test_conventions_are_kept() -> None:
    """Biases zero, gains one, the [pad] row zero, whatever was there before."""
    model = build(
        LanguageConfig(n=16, H=2, encoders=1, n_vocab=11, T=5, pad=2, bias=True, affine=True),
        seed=1,
    )
    plan = orderone.plan(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    plan.initialize_()
    parameters = dict(model.named_parameters())
    assert {row.role for row in plan.rows} >= {"gain", "bias"}
    for line in plan.rows:
        value = parameters[line.name]
        if line.role == "gain":
            assert bool((value == 1).all())
        elif line.role == "bias":
            assert bool((value == 0).all())
        else:
            assert 0 < float(value.detach().std()) < 3
    word = model.stem.word.weight
    assert bool((word[2] == 0).all())
    assert int((word == 0).all(dim=1).sum()) == 1


def test_deviations_in_the_model_are_the_tables() -> None:
    """Each tensor of k elements to 5/√(2k) of its row's deviation, and uniform where it says so."""
    config = VisionConfig(n=64, H=4, encoders=1, image_size=32, n_out=50)
    model = build(config, seed=0)
    plan = orderone.plan(model)
    plan.initialize_(seed=9)
    for line in plan.rows:
        if line.start != "draw":
            continue
        value = model.get_parameter(line.name).detach().double()
        assert line.init_std is not None
        rms = float(value.square().mean().sqrt())
        assert abs(rms / line.init_std - 1) < 5 / math.sqrt(2 * value.numel()), line.name
        flat = float(value.abs().max()) <= math.sqrt(3) * line.init_std * (1 + 1e-6)
        assert flat == (line.distribution == "uniform"), line.name
    assert {r.role for r in plan.rows if r.distribution == "uniform"} == set("QKVUWX")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_rounded_float32(dtype: torch.dtype) -> None:
    single, other = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    initialize_({"a": single}, [row("a", (3, 4))], seed=0)
    initialize_({"a": other}, [row("a", (3, 4))], seed=0)
    assert torch.equal(other, single.to(dtype))


def test_layout_does_not_matter() -> None:
    plain, turned = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(4, 3).T)
    for parameter in (plain, turned):
        initialize_({"a": parameter}, [row("a", (3, 4))], seed=0)
    assert torch.equal(plain, turned)


def test_meta_is_refused_before_anything_is_drawn() -> None:
    first = nn.Parameter(torch.zeros(3))
    parameters = {"a": first, "b": nn.Parameter(torch.zeros(3, device="meta"))}
    with pytest.raises(ModelError, match=r"b is on the meta device.*to_empty"):
        initialize_(parameters, [row("a", (3,)), row("b", (3,))], seed=0)
    assert bool((first == 0).all())
