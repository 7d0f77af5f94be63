"""Running sums against every pair, written out."""

from __future__ import annotations

import math

import pytest
import torch

from orderone.probes.alike import Alike

LENGTHS = [3, 1, 4, 5, 2]


def vectors(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(LENGTHS), 7, generator=generator, dtype=torch.float64) + 1.5


def filled(f: torch.Tensor, sf: torch.Tensor) -> Alike:
    found = Alike()
    found.add(f, sf, LENGTHS)
    return found


def test_every_mean_is_that_over_all_pairs() -> None:
    f, sf = vectors(0), vectors(1)
    u, v = (x / x.norm(dim=-1, keepdim=True) for x in (f, sf))
    found, N = filled(f, sf), len(f)
    apart = ~torch.eye(N, dtype=torch.bool)
    assert found.cosine == pytest.approx(float((u * v).sum(-1).mean()), abs=1e-14)
    assert found.other == pytest.approx(float((u @ u.T)[apart].mean()), abs=1e-14)
    assert found.other_saturated == pytest.approx(float((v @ v.T)[apart].mean()), abs=1e-14)
    assert found.cross == pytest.approx(float((u @ v.T)[apart].mean()), abs=1e-14)
    a, b = (x - x.mean(dim=0) for x in (u, v))
    expected = float((a * b).sum() / (a.norm() * b.norm()))
    assert found.centred == pytest.approx(expected, abs=1e-14)


def test_the_error_is_that_of_drawing_sentences() -> None:
    """Against the ratio estimator's formula on sums kept apart."""
    f, sf = vectors(0), vectors(1)
    cosines = torch.cosine_similarity(f, sf, dim=-1).split(LENGTHS)
    mean = float(torch.cat(cosines).mean())
    m = len(LENGTHS)
    spread = sum(float(each.sum() - len(each) * mean) ** 2 for each in cosines)
    expected = math.sqrt(m / (m - 1) * spread) / sum(LENGTHS)
    assert filled(f, sf).se == pytest.approx(expected, rel=1e-10)


def test_the_error_covers_the_truth() -> None:
    """Of 400 draws of 60 sentences whose tokens depend on each other, 68 % lie within one error."""
    generator = torch.Generator().manual_seed(0)
    inside, draws, lengths = 0, 400, [5] * 60
    for _ in range(draws):
        # A cosine each sentence shares: cos = tanh(g), of mean 0.
        g = torch.randn(60, generator=generator).tanh().double().repeat_interleave(5)
        f = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(300, 2)
        sf = torch.stack([g, (1 - g**2).sqrt()], dim=-1)
        found = Alike()
        found.add(f, sf, lengths)
        assert found.se is not None
        inside += abs(found.cosine) < found.se
    assert abs(inside / draws - 0.683) < 3 * math.sqrt(0.683 * 0.317 / draws)


def test_parts_add_up() -> None:
    f, sf = vectors(0), vectors(1)
    whole, parts = filled(f, sf), Alike()
    parts.add(f[:4], sf[:4], LENGTHS[:2], [1, 2, 1, 3])
    parts.add(f[4:], sf[4:], LENGTHS[2:], [1] * 11)
    for name in ("cosine", "se", "other", "cross", "centred"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), abs=1e-13)
    assert parts.by_token[1][0] == 13
    assert sum(n for n, _ in parts.by_token.values()) == parts.tokens


def test_constants_zero_included_are_alike_and_nothing_is_left_of_them() -> None:
    for constant in (torch.ones(15, 7), torch.zeros(15, 7)):
        found = filled(constant, constant)
        assert found.cosine == pytest.approx(1.0)
        assert found.other == pytest.approx(1.0)
        assert found.centred is None


def test_sizes_do_not_matter_however_large() -> None:
    f, sf = vectors(0), vectors(1)
    assert filled(f * 1e200, sf * 1e-200).cosine == pytest.approx(filled(f, sf).cosine, abs=1e-14)


def test_one_token_has_no_other() -> None:
    found = Alike()
    found.add(torch.ones(1, 3), torch.ones(1, 3), [1])
    assert (found.other, found.cross, found.centred, found.se) == (None, None, None, None)
