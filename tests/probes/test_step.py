"""Fused sums against float64 throughout, over dtypes, shapes, memory orders and magnitudes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from orderone.probes.step import (
    copy_,
    empty_copy,
    geometry,
    pieces,
    rounding_squares,
    squares,
    step_sums,
)

SHAPES = [(40_000,), (300, 211), (7,), (1 << 18,), (3, 64, 512), (0,), ()]


def pairs(dtype: torch.dtype, scale: float) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    before = [scale * torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    after = [x + 1e-2 * scale * torch.randn(x.shape, generator=generator) for x in before]
    return [x.to(dtype) for x in before], [x.to(dtype) for x in after]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e-21, 1e19])
def test_sums_are_those_of_float64(dtype: torch.dtype, scale: float) -> None:
    """Also where float32 squares would be 0 or infinite; errors relative to ‖a‖‖b‖."""
    before, after = pairs(dtype, scale)
    kept = empty_copy(pieces(before))
    copy_(kept, pieces(before))
    sums = step_sums(pieces(after), kept, len(SHAPES))
    for index, (b, a) in enumerate(zip(before, after, strict=True)):
        x, y = a.double().flatten(), b.double().flatten()
        delta = x - y
        expected = [x @ x, y @ y, delta @ delta, delta @ y]
        sizes = [*expected[:3], (expected[1] * expected[2]).sqrt()]
        for found, exact, size in zip(sums[:, index], expected, sizes, strict=True):
            assert abs(float(found - exact)) <= 1e-6 * float(size)
    assert torch.equal(squares(pieces(after), len(SHAPES)) > 0, sums[0] > 0)
    torch.testing.assert_close(squares(pieces(after), len(SHAPES)), sums[0], rtol=1e-6, atol=0)


def test_a_step_of_nothing_turns_nothing_and_has_no_direction() -> None:
    theta = [torch.randn(300, 300, generator=torch.Generator().manual_seed(0))]
    found = geometry(step_sums(pieces(theta), pieces(theta), 1))
    assert found.step_norm.item() == found.one_minus_cosine.item() == 0.0
    assert math.isnan(found.alignment.item())


def test_memory_in_any_order_is_compared_element_by_element() -> None:
    """A transposed parameter, and one with gaps in its memory."""
    base = torch.randn(400, 300, generator=torch.Generator().manual_seed(0))
    for view in (base.T, base[:, ::2], base[::2].T):
        kept = empty_copy(pieces([view]))
        copy_(kept, pieces([view]))
        moved = torch.empty_strided(view.shape, view.stride()).copy_(view) * 1.5
        sums = step_sums(pieces([moved]), kept, 1)[:, 0]
        exact = view.double().square().sum()
        torch.testing.assert_close(sums, exact * torch.tensor([2.25, 1, 0.25, 0.5]).double())


@pytest.mark.parametrize("angle", [1e-7, 1e-3, 1.0, 3.0])
def test_one_minus_cosine_of_a_known_rotation(angle: float) -> None:
    """1 − cos φ = 2 sin²(φ/2), with no digits lost for small φ."""
    theta = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    turned = 2 * torch.tensor([[3 * math.cos(angle), 3 * math.sin(angle)]], dtype=torch.float64)
    # By the same numbers: 1 − cos(angle) would itself lose them.
    found = geometry(step_sums(pieces([turned]), pieces([theta]), 1)).one_minus_cosine.item()
    assert found == pytest.approx(2 * math.sin(angle / 2) ** 2, rel=1e-1 if angle < 1e-6 else 1e-9)


def test_rounding_of_bf16_is_of_the_size_expected() -> None:
    """‖rounding‖² of Gaussian numbers, mean over the scales of an octave, within 3 %."""
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ratios: list[float] = []
    for k in range(16):
        y = x * 2 ** (k / 16)
        measured = (y.to(torch.bfloat16).double() - y).square().sum()
        told = rounding_squares((y @ y).repeat(2), [torch.bfloat16, torch.float32])
        assert told[1].item() == 0
        ratios.append((measured / told[0]).item())
    assert sum(ratios) / 16 == pytest.approx(1, rel=0.03)
