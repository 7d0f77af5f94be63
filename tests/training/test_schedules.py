"""Multipliers at known t, and groups that keep their ratios."""

from __future__ import annotations

import math

import pytest
import torch

from orderone.training.schedules import Schedule, multiplier


@pytest.mark.parametrize(
    ("kind", "t", "expected"),
    [
        ("constant", 4, 1.0),
        ("constant", 100, 1.0),
        ("cosine", 4, 1.0),
        ("cosine", 54, 0.1 + 0.9 * 0.5),
        ("cosine", 29, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 104, 0.1),
        ("cosine", 1000, 0.1),
        ("linear", 54, 0.55),
        ("linear", 79, 0.325),
        ("linear", 104, 0.1),
        ("inverse-sqrt", 3, 1.0),
        ("inverse-sqrt", 15, 0.5),
        ("inverse-sqrt", 63, 0.25),
    ],
)
def test_values(kind: str, t: int, expected: float) -> None:
    """Warm-up 4 of 104 steps, floor 0.1."""
    value = multiplier(kind, steps=104, warmup=4, floor=0.1)
    assert [value(s) for s in range(3)] == [0.25, 0.5, 0.75]
    assert value(t) == pytest.approx(expected, rel=1e-12)


def test_groups_keep_their_ratios() -> None:
    groups = [{"params": [torch.ones(1)], "lr": lr} for lr in (2.0, 0.5, 1e-3)]
    optimizer = torch.optim.SGD(groups)
    schedule = Schedule(optimizer, multiplier("linear", steps=10, warmup=3))
    for t in range(10):
        factor = schedule.apply(t)
        assert [group["lr"] for group in optimizer.param_groups] == [
            2.0 * factor,
            0.5 * factor,
            1e-3 * factor,
        ]
