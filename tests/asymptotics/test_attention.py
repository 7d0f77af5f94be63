"""Tie-sharing arg max, [MRGSS21] §4.2."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orderone.asymptotics import degrees, saturated, saturated_attention
from orderone.asymptotics.attention import rounding

rows = st.lists(st.integers(-3, 3), min_size=1, max_size=6)


@settings(deadline=None)  # the first call imports
@given(rows)
def test_it_is_the_limit_of_softmax(row):
    """Whole numbers differ by 1 at least, so that softmax(1000 a) is the limit to rounding."""
    scores = torch.tensor(row, dtype=torch.float64)
    expected = (1000 * scores).softmax(-1)
    torch.testing.assert_close(saturated_attention(scores), expected, rtol=0, atol=1e-15)


@settings(deadline=None)
@given(rows, st.integers(1, 100))
def test_shifts_and_scales_change_nothing(row, c):
    scores = torch.tensor(row, dtype=torch.float64)
    weights = saturated_attention(scores)
    assert torch.equal(saturated_attention(c * scores + 7), weights)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-15)


def test_ties_are_shared_and_masks_take_nothing():
    scores = torch.tensor([[2.0, 2.0, 1.0, -torch.inf], [0.0, 0.0, 0.0, -torch.inf]])
    half, third = 1 / 2, 1 / 3
    expected = torch.tensor([[half, half, 0, 0], [third, third, third, 0]])
    torch.testing.assert_close(saturated_attention(scores), expected)


def test_a_row_without_positions_attends_to_nothing():
    assert not saturated_attention(torch.full((2, 3), -torch.inf)).any()
    # A finite minimum everywhere is a softmax of equal numbers, as in the model itself.
    lowest = torch.full((1, 4), torch.finfo(torch.float64).min, dtype=torch.float64)
    assert torch.equal(saturated_attention(lowest), lowest.softmax(-1))


def test_tolerance_is_relative_to_the_row():
    scores = torch.tensor([1e8, 1e8 - 1.0, 0.0], dtype=torch.float64)
    assert torch.equal(saturated_attention(scores), torch.tensor([1.0, 0, 0]).double())
    shared = saturated_attention(scores, tolerance=2e-8)
    assert torch.equal(shared, torch.tensor([0.5, 0.5, 0]).double())


class Scores(nn.Module):
    def __init__(self, *terms) -> None:
        super().__init__()
        self.terms = nn.ParameterList(torch.tensor(each, dtype=torch.float64) for each in terms)
        self.c = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, finite=None):
        scores = sum(term * self.c**i for i, term in enumerate(self.terms))
        return (scores if finite is None else scores + finite).softmax(-1)


def test_dominated_summands_decide_ties():
    found = saturated(Scores([0.0, 5.0, 5.0, 9.0], [3.0, 3.0, 3.0, 1.0]))
    assert torch.equal(found.lead, torch.tensor([0.0, 0.5, 0.5, 0.0]).double())
    assert "tie" not in found.dropped


def test_each_lower_degree_decides_what_is_left():
    found = saturated(Scores([0.0] * 4, [2.0, 1.0, 2.0, 2.0], [4.0, 4.0, 3.0, 4.0], [5.0] * 4))
    assert torch.equal(found.lead, torch.tensor([0.5, 0, 0, 0.5]).double())


def test_what_is_dominated_moves_with_the_scores():
    class Moved(Scores):
        def forward(self, finite=None):
            scores = self.terms[0] * self.c + self.terms[1] * self.c**2
            return scores.view(2, 2).mT.flip(0).softmax(-1)

    found = saturated(Moved([0.0, 3.0, 5.0, 4.0], [2.0, 7.0, 2.0, 8.0]))
    assert torch.equal(found.lead, torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double())
    moved = saturated(Moved([0.0, 3.0, 5.0, 4.0], [2.0, 7.0, 2.0, 7.0]))
    assert torch.equal(moved.lead, torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double())


def test_what_is_dominated_is_forgotten_when_written_over():
    class Written(Scores):
        def forward(self, finite=None):
            scores = self.terms[0] * self.c + self.terms[1] * self.c**2
            scores[:].copy_(self.terms[1] * self.c**2)
            return scores.softmax(-1)

    found = saturated(Written([1.0, 2.0], [3.0, 3.0]))
    assert torch.equal(found.lead, torch.tensor([0.5, 0.5]).double())


def test_a_dominated_summand_does_not_hide_what_a_product_forgot():
    class Both(Scores):
        def forward(self, finite=None):
            keys = self.terms[0] * self.c + self.terms[1]
            return (keys * self.c + self.terms[2]).softmax(-1)

    assert "tie" in saturated(Both([1.0, 1.0], [1.0, 2.0], [3.0, 3.0])).dropped


def test_finite_parts_share_a_tie_as_a_softmax():
    finite = torch.tensor([0.0, 1.0, 9.0], dtype=torch.float64)
    found = saturated(Scores([2.0, 2.0, 1.0]), finite)
    expected = torch.cat([finite[:2].softmax(-1), torch.zeros(1)])
    torch.testing.assert_close(found.lead, expected)
    assert "tie" not in found.dropped


def test_a_tie_that_products_may_decide_is_said():
    """Q h has a part of degree 1 beside degree 2, which a product forgets."""

    class Forgetful(Scores):
        def forward(self, finite=None):
            keys = self.terms[0] * self.c + self.terms[1]
            return (keys * self.c).softmax(-1)

    found = saturated(Forgetful([1.0, 1.0], [1.0, 2.0]))
    assert torch.equal(found.lead, torch.tensor([0.5, 0.5]).double())
    assert "tie" in found.dropped


def test_rounding_does_not_break_ties():
    noise = 1 + torch.tensor([0.0, 3.0, -2.0]).double() * torch.finfo(torch.float64).eps
    found = saturated(Scores(noise.tolist()))
    torch.testing.assert_close(found.lead, torch.full((3,), 1 / 3).double())
    assert rounding(torch.float64) < 1e-13


def test_a_finite_mask_leaks_and_the_trace_says_so():
    """−10000, as old models have it, is nothing beside scores that grow; −∞ is not."""
    model = Scores([0.0, 0.0], [1.0, 3.0])
    leaking = torch.tensor([0.0, -1e4], dtype=torch.float64)
    trace = degrees(model, leaking)
    assert any("a finite mask, which leaks" in line.note for line in trace.lines)
    assert torch.equal(saturated(model, leaking).lead, torch.tensor([0.0, 1.0]).double())
    lowest = torch.tensor([0.0, torch.finfo(torch.float32).min], dtype=torch.float64)
    assert torch.equal(saturated(model, lowest).lead, torch.tensor([1.0, 0.0]).double())
