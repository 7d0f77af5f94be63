"""The step behind a rounded one, against the step itself."""

import pytest
import torch

from orderone.trajectory.rounding import (
    DIGITS,
    LEAST,
    Grid,
    exponent_counts,
    is_coarse,
    without_rounding,
)


def grid(x, dtype):
    counts = exponent_counts(x)
    return Grid(digits=DIGITS.get(dtype), counts=counts, least=LEAST.get(dtype, 0.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("relative", [3e-6, 1e-4, 1e-3, 1e-2])
def test_two_rounded_points_tell_the_step_between(dtype, relative):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(400_000, generator=generator)
    step = relative * torch.randn(400_000, generator=generator)
    a, b = theta.to(dtype), (theta + step).to(dtype)
    stored = float((b.double() - a.double()).square().sum())
    found = without_rounding(stored, grid(a, dtype), grid(b, dtype)) ** 0.5
    # The fewer elements jump to the next grid point, the noisier the estimate: 5 of its deviations.
    jumps = int((a != b).sum())
    assert found == pytest.approx(float(step.norm()), rel=0.03 + 5 / max(jumps, 1) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_below_the_least_exponent_the_grid_gets_no_finer(dtype):
    """Weights of 0.02 as fp8: e4m3's numbers below 2⁻⁶ lie 2⁻⁹ apart."""
    generator = torch.Generator().manual_seed(0)
    theta = 0.02 * torch.randn(400_000, generator=generator)
    step = 4e-4 * torch.randn(400_000, generator=generator)
    a, b = theta.to(dtype), (theta + step).to(dtype)
    stored = float((b.double() - a.double()).square().sum())
    found = without_rounding(stored, grid(a, dtype), grid(b, dtype)) ** 0.5
    assert stored**0.5 > 2 * float(step.norm())
    assert found == pytest.approx(float(step.norm()), rel=0.12)


def test_one_rounded_point_of_two():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(400_000, generator=generator)
    step = 1e-3 * torch.randn(400_000, generator=generator)
    a, b = theta.bfloat16(), theta + step
    stored = float((b.double() - a.double()).square().sum())
    found = without_rounding(stored, grid(a, torch.bfloat16), grid(b, torch.float32))
    assert stored**0.5 > 1.5 * float(step.norm())
    assert found**0.5 == pytest.approx(float(step.norm()), rel=0.05)


def test_nothing_is_taken_from_full_precision():
    x = torch.randn(1000)
    assert without_rounding(1.25, grid(x, torch.float32), grid(x, torch.float32)) == 1.25


def test_rounded_weights_are_known_when_widened():
    x = torch.randn(4096)
    assert is_coarse([x.bfloat16().float()])
    assert not is_coarse([x])
    assert not is_coarse([torch.ones(4096)])
