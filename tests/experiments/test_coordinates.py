"""Coordinates: measured slopes over widths 64 … 1024 are those of the theory."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ConfigError, ModelError, OrderoneError
from orderone.experiments.coordinates import Coordinates
from orderone.models import LanguageConfig, VisionConfig, build

WIDTHS = (64, 128, 256, 512, 1024)
STRATEGIES = {"neural-tangent": 0.0, "hybrid": 0.5, "maximal-update": 1.0, "standard": 0.0}


def small_vision(width: int) -> nn.Module:
    """One attention and one MLP block, with as many more heads as there is more width."""
    return build(
        VisionConfig(
            n=width, H=width // 16, encoders=1, image_size=16, patch=4, channels=1, n_out=10
        )
    )


@cache
def measured(strategy: str) -> Coordinates:
    return orderone.coordinates(small_vision, WIDTHS, strategy, steps=1, seeds=2)


def slope_of(result: Coordinates, kind: str, where: str, quantity: str) -> float:
    (line,) = (x for x in result.lines if (x.kind, x.where, x.quantity) == (kind, where, quantity))
    assert line.slope is not None
    return line.slope


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_fall_with_the_width_as_the_theory_says(strategy: str) -> None:
    """|g| ∝ 1/√fan_out, × n^(−s/2) but for the head: [DYZ23] (1.108)–(1.116), footnote 26."""
    s, result = STRATEGIES[strategy], measured(strategy)
    for group in ("patch", "position", "Q", "K", "V", "U", "W", "X"):
        assert slope_of(result, "gradient", group, "size") == pytest.approx(-(1 + s) / 2, abs=0.1)
    for group in ("head", "head bias"):
        assert slope_of(result, "gradient", group, "size") == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("strategy", ["neural-tangent", "hybrid", "maximal-update"])
def test_signals_begin_of_order_one_and_one_step_does_not_grow_with_the_width(
    strategy: str,
) -> None:
    """Slopes below 0.1 everywhere.

    What decays: the output at initialisation, as n^(−s/2); the change of all within, as
    n^(−(1−s)/2), which is s = 0's lazy learning. The output's change tends to a constant from
    above, since its random part, of relative size 1/√n, has not died out at n = 64.
    """
    s, result = STRATEGIES[strategy], measured(strategy)
    assert result.verdict == "holds"
    assert all(line.slope is None or line.slope < 0.1 for line in result.lines)
    assert slope_of(result, "output", "output", "size") == pytest.approx(-s / 2, abs=0.1)
    assert -0.25 < slope_of(result, "output", "output", "change") < 0.1
    for block in ("blocks.0", "blocks.1"):
        assert slope_of(result, "block", block, "size") == pytest.approx(0.0, abs=0.1)
        change = slope_of(result, "block", block, "change")
        assert change == pytest.approx(-(1 - s) / 2, abs=0.1)


def test_one_step_of_uniform_rates_grows_with_the_width() -> None:
    """Under standard Δz ∝ lr · n^(½ … 1): the check fails, at the output and in every block."""
    result = measured("standard")
    assert result.verdict == "does not hold"
    assert slope_of(result, "output", "output", "change") > 0.5
    assert "change of output after 1 step" in {line.what for line in result.growing}


def test_a_wrong_initialisation_is_found() -> None:
    """Weights of one deviation at every width: attention logits grow as n, z with them."""
    result = orderone.coordinates(
        lambda width: build(LanguageConfig(n=width, H=2, encoders=1, T=8, n_vocab=32)),
        [32, 64, 128],
        "standard",
        steps=1,
        seeds=2,
    )
    assert result.verdict == "does not hold"
    assert any(line.kind == "logits" and line.quantity == "size" for line in result.growing)


def test_own_inputs_and_loss_and_generators_left_alone() -> None:
    """What the user gives is used as it is, and torch's generator is where it was."""
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)
    losses: list[float] = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert batch is inputs
        value = model(batch).square().mean()
        losses.append(value.item())
        return value

    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, 2))

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    result = orderone.coordinates(
        make, [32, 64, 128], steps=1, seeds=1, inputs=inputs, loss=loss, lr=0.1
    )
    assert torch.equal(torch.rand(3), expected)
    assert losses
    assert set(result.frame["width"].unique()) == {32, 64, 128}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: orderone.coordinates(small_vision, [64]), "at least two"),
        (lambda: orderone.coordinates(small_vision, [64, 128], seeds=1), "at least 3 models"),
        (lambda: orderone.coordinates(lambda w: small_vision(64), [64, 128], seeds=2), "scales"),
        (lambda: orderone.coordinates(small_vision, [64, 128], "best", seeds=2), "strategy 'best'"),
        (lambda: orderone.coordinates(lambda w: w, [64, 128], seeds=2), r"make\(64\) is a int"),  # pyright: ignore[reportArgumentType,reportReturnType]
        (lambda: orderone.coordinates(small_vision, [64, 128], s=1.5, seeds=2), "s = 1.5"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[], Coordinates], words: str) -> None:
    with pytest.raises(OrderoneError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError | ModelError)
