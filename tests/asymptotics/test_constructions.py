"""Heads made by hand and aⁿbⁿcⁿ, [MRGSS21] §4.2."""

import re
from itertools import product

import pytest
import torch

from orderone.asymptotics import saturated
from orderone.asymptotics.constructions import (
    Recognizer,
    SoftHead,
    argmax_head,
    letters,
    mean_head,
)
from orderone.core.errors import DataError


def in_language(text: str) -> bool:
    """aⁿbⁿcⁿ, n ≥ 1, by Python's own means."""
    found = re.fullmatch("(a+)(b+)(c+)", text)
    return found is not None and len(set(map(len, found.groups()))) == 1


def test_an_argmax_head_gives_the_vector_of_largest_score():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    M = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    head = argmax_head(M)
    for i in range(5):
        scores = [float(h[j] @ M @ h[i]) for j in range(5)]
        torch.testing.assert_close(head(h)[i], h[scores.index(max(scores))])
    assert torch.equal((head.weights(h) > 1e-5).sum(-1), torch.ones(5, dtype=torch.long))


def test_a_mean_head_gives_the_mean():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    V = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(mean_head(V)(h), (h @ V.mT).mean(0).expand(5, 3))
    assert torch.equal((mean_head(V).weights(h) > 1e-5).sum(-1), torch.full((5,), 5))


@pytest.mark.parametrize("length", range(1, 10))
def test_the_recognizer_is_right_on_every_string(length):
    """All 3^length strings, with as many positions as letters and with more."""
    texts = ["".join(each) for each in product("abc", repeat=length)]
    batch = torch.cat([letters(text) for text in texts])
    expected = torch.tensor([in_language(text) for text in texts])
    for T in (length, 30):
        assert torch.equal(Recognizer(T)(batch) > 0, expected)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_long_strings_and_their_nearest_misses(n):
    recognizer = Recognizer(3 * n + 1)
    right = "a" * n + "b" * n + "c" * n
    assert recognizer(letters(right)).item() > 0
    for wrong in (right + "c", "a" + right, right[1:], right[:-1], right[::-1]):
        assert recognizer(letters(wrong)).item() < 0
    swapped = [right[:i] + right[i + 1] + right[i] + right[i + 2 :] for i in (n - 1, 2 * n - 1)]
    assert all(recognizer(letters(wrong)).item() < 0 for wrong in swapped)


def test_the_trained_form_saturates_to_the_recognizer():
    """Softmax heads with Q and K → ∞ are the saturated heads; at c = 1 they cannot tell."""
    soft, hard = Recognizer(9, heads=SoftHead), Recognizer(9)
    texts = ["".join(each) for each in product("abc", repeat=6)]
    batch = torch.cat([letters(text) for text in texts])
    limit = saturated(soft, batch, scaled=soft.attention_parameters())
    assert limit.degree == 0
    torch.testing.assert_close(limit.lead, hard(batch).detach(), rtol=0, atol=1e-12)
    assert not torch.equal(soft(batch) > 0, hard(batch) > 0)


def test_strings_that_cannot_be_read_are_refused():
    with pytest.raises(DataError, match="'abd'"):
        letters("abd")
    with pytest.raises(DataError, match="4 letters; expected 1 to 3"):
        Recognizer(3)(letters("abcc"))
