"""At s = 1 our factors are those of the ``mup`` package, tensor by tensor, over a base's.

mup keeps a readout's weights of order one and multiplies its input by 1/m, m the width over the
base's; we shrink the weights themselves. Under AdamW, weights times 1/m are weights of 1/m the
deviation that learn at 1/m the rate: that is what is compared. Where mup is known to differ (tied
readouts, biases of readouts) there is nothing here.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from orderone.models import LanguageConfig, build
from orderone.scaling.plan import plan

mup = pytest.importorskip("mup")

BASE = 64


def mlp(n: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, n, bias=False),
        nn.ReLU(),
        nn.Linear(n, 2 * n, bias=False),
        nn.ReLU(),
        nn.Linear(2 * n, n, bias=False),
        nn.ReLU(),
        mup.MuReadout(n, 10, bias=False),
    )


def transformer(n: int) -> nn.Module:
    model: Any = build(
        LanguageConfig(n=n, H=n // 16, encoders=1, T=8, n_vocab=32, n_out=20, head_tied=False)
    )
    model.head.W = mup.MuReadout(n, 20, bias=False)
    return model


def mup_factors(make: Callable[[int], nn.Module], n: int) -> dict[str, tuple[float, float]]:
    """(deviation, learning rate) of every tensor at n over those at the base width."""
    model = make(n)
    mup.set_base_shapes(model, make(BASE), delta=make(2 * BASE))
    rates = {
        id(parameter): group["lr"]
        for group in mup.MuAdamW(model.parameters(), lr=1.0).param_groups
        for parameter in group["params"]
    }
    readouts = {id(m.weight): m for m in model.modules() if isinstance(m, mup.MuReadout)}
    factors: dict[str, tuple[float, float]] = {}
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
        torch.manual_seed(3)
        mup.init.normal_(parameter, std=1.0)  # scaled by the rule of the parameter's shape
        std = (parameter.detach() / drawn).median().item()
        readout = readouts.get(id(parameter))
        multiplier = 1.0 if readout is None else 1 / readout.width_mult()
        factors[name] = (std * multiplier, rates[id(parameter)] * multiplier)
    return factors


@pytest.mark.parametrize("make", [mlp, transformer], ids=["mlp", "transformer"])
@pytest.mark.parametrize("n", [128, 512])
def test_factors_are_those_of_mup(make: Callable[[int], nn.Module], n: int) -> None:
    base = plan(make(BASE), "maximal-update")
    ours = plan(make(n), "maximal-update")
    theirs = mup_factors(make, n)
    assert {row.name for row in ours.rows} == set(theirs)
    for row in ours.rows:
        before = base[row.name]
        assert row.init_std is not None
        assert before.init_std is not None
        std, rate = theirs[row.name]
        assert row.init_std / before.init_std == pytest.approx(std, rel=1e-5), row.name
        assert row.lr_factor / before.lr_factor == pytest.approx(rate, rel=1e-5), row.name


def test_other_strategies_are_not_those_of_mup() -> None:
    """The comparison can fail: at s = 0 the hidden matrices learn at another rate."""
    base, ours = plan(mlp(BASE), "neural-tangent"), plan(mlp(256), "neural-tangent")
    _, rate = mup_factors(mlp, 256)["2.weight"]
    assert ours["2.weight"].lr_factor / base["2.weight"].lr_factor != pytest.approx(rate, rel=0.1)
