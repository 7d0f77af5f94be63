"""Batch means."""

import pytest
import torch

from orderone.theory.propagation import batch_mean, relative_error


def test_mean_and_error_of_the_mean():
    found = batch_mean([torch.tensor([x]).double() for x in (1.0, 2.0, 6.0)])
    assert found.value.item() == pytest.approx(3.0)
    assert found.se.item() == pytest.approx((7.0 / 3) ** 0.5)
    assert relative_error(found) == pytest.approx((7.0 / 3) ** 0.5 / 3)


def test_runs_that_agree_have_no_error():
    """Also where the mean of equal numbers would round."""
    run = torch.tensor([0.1, 1 / 3]).double()
    found = batch_mean([run] * 7)
    assert torch.equal(found.value, run)
    assert torch.equal(found.se, torch.zeros(2).double())
