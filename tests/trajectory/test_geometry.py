"""Every quantity of a series against float64 vectors held whole."""

import numpy as np
import pytest
import torch

from orderone.trajectory.geometry import neighbours_of, pairs_of
from orderone.trajectory.gram import add_neighbours, add_pairs, tilts_of


def series(count, elements, size, *, aligned=0.0, seed=0, dtype=torch.float32):
    """θ_{t+1} = (1 + aligned·size) θ_t + size·‖θ‖·noise, held in ``dtype``."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(elements, generator=generator, dtype=torch.float64)
    points = [theta.to(dtype)]
    for _ in range(count - 1):
        noise = torch.randn(elements, generator=generator, dtype=torch.float64)
        theta = theta * (1 + aligned * size) + size * noise * (1e-2 if aligned else 1.0)
        points.append(theta.to(dtype))
    return points


def exact(points):
    """Norms, 1 − cos, step norms and alignments with everything in long double."""
    wide = [p.double().numpy().astype(np.longdouble) for p in points]
    norm = [np.sqrt(w @ w) for w in wide]
    rows = []
    for i in range(len(wide) - 1):
        a, b = wide[i], wide[i + 1]
        d = b - a
        s = np.sqrt(d @ d)
        apart = b / norm[i + 1] - a / norm[i]
        rows.append((apart @ apart / 2, s, (a @ d) / (norm[i] * s)))
    cosine, step, alignment = np.array(rows, dtype=np.float64).T
    return np.array(norm, dtype=np.float64), cosine, step, alignment


def measured(points, pairs):
    if pairs:
        gram = np.zeros((len(points), len(points)))
        add_pairs(gram, points)
        return pairs_of(gram).neighbours()
    sums = np.zeros((len(points), 3))
    tilts = tilts_of(torch.stack([p[:5000] for p in points]).double().numpy())
    add_neighbours(sums, points, tilts)
    return neighbours_of(sums, tilts)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("aligned", [0.0, 1.0])
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-5])
def test_norms_angles_and_alignment_are_right(pairs, aligned, size):
    points = series(3, 1_000_003, size, aligned=aligned)
    norm, cosine, step, alignment = exact(points)
    found = measured(points, pairs)
    assert found.norm == pytest.approx(norm, rel=1e-7)
    assert found.step_norm == pytest.approx(step, rel=1e-6)
    if (cosine > 1e-9).all():
        assert found.one_minus_cosine == pytest.approx(cosine, rel=1e-5)
    assert found.alignment == pytest.approx(alignment, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("pairs", [True, False])
def test_other_dtypes_are_measured_as_stored(dtype, pairs):
    points = series(4, 200_001, 1e-2, dtype=dtype)
    norm, cosine, step, alignment = exact(points)
    found = measured(points, pairs)
    assert found.norm == pytest.approx(norm, rel=1e-9)
    assert found.step_norm == pytest.approx(step, rel=1e-9)
    assert found.one_minus_cosine == pytest.approx(cosine, rel=1e-7)
    assert found.alignment == pytest.approx(alignment, rel=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e25, "alike", "spike", "return"])
def test_what_float32_cannot_add_is_added_in_float64(scale):
    points = series(4, 100_003, 1e-2)
    if scale == "alike":
        points = [torch.full((100_003,), 0.1 + 0.0123 * i) for i in range(4)]
    elif scale == "spike":
        points[2] = points[2] * 1e4
    elif scale == "return":
        points[1] = points[1] * 1e-6
    else:
        points = [p * scale for p in points]
    norm, _, step, _ = exact(points)
    found = measured(points, pairs=False)
    assert found.norm == pytest.approx(norm, rel=1e-7)
    assert found.step_norm == pytest.approx(step, rel=1e-7)


def test_every_pair_and_lag():
    points = series(6, 20_000, 0.3)
    gram = np.zeros((6, 6))
    add_pairs(gram, points)
    found = pairs_of(gram)
    wide = torch.stack(points).double()
    for i in range(6):
        for j in range(6):
            if i == j:
                continue
            d = wide[j] - wide[i]
            cosine = float(wide[i] @ wide[j] / (wide[i].norm() * wide[j].norm()))
            assert found.distance[i, j] == pytest.approx(float(d.norm()), rel=1e-12)
            assert 1 - found.one_minus_cosine[i, j] == pytest.approx(cosine, rel=1e-12)
            alignment = float(wide[i] @ d / (wide[i].norm() * d.norm()))
            assert found.alignment[i, j] == pytest.approx(alignment, rel=1e-9)


def test_principal_components_are_those_of_the_points():
    points = series(5, 3000, 0.3)
    gram = np.zeros((5, 5))
    add_pairs(gram, points)
    variances, coordinates = pairs_of(gram).components
    wide = torch.stack(points).double()
    values = torch.linalg.svdvals(wide - wide.mean(0)).numpy()
    assert variances == pytest.approx(values**2 / 5, abs=1e-9)
    apart = np.linalg.norm(coordinates[:, None] - coordinates[None], axis=-1)
    assert apart == pytest.approx(pairs_of(gram).distance, abs=1e-6)


def test_a_straight_path_has_one_dimension_and_a_random_walk_more():
    direction = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    straight = [direction * (1 + 0.1 * i) for i in range(8)]
    gram = np.zeros((8, 8))
    add_pairs(gram, straight)
    assert pairs_of(gram).effective_dimension == pytest.approx(1, abs=1e-4)
    gram = np.zeros((8, 8))
    add_pairs(gram, series(8, 1000, 0.5))
    assert pairs_of(gram).effective_dimension > 1.5


def test_dropping_a_point_bridges_the_gap():
    points = series(5, 3000, 0.3)
    gram, short = np.zeros((5, 5)), np.zeros((4, 4))
    add_pairs(gram, points)
    add_pairs(short, [*points[:2], *points[3:]])
    kept, direct = pairs_of(gram).without({2}).neighbours(), pairs_of(short).neighbours()
    assert kept.step_norm == pytest.approx(direct.step_norm, rel=1e-12)
    assert kept.alignment == pytest.approx(direct.alignment, rel=1e-9)


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_the_share_of_alignment_is_the_exact_identity(lag):
    points = series(7, 5000, 0.2)
    gram = np.zeros((7, 7))
    add_pairs(gram, points)
    wide = torch.stack(points[::lag]).double()
    d = wide[1:] - wide[:-1]
    aligned = 2 * (wide[:-1] * d).sum()
    growth = wide[-1] @ wide[-1] - wide[0] @ wide[0]
    assert pairs_of(gram).share(lag) == pytest.approx(float(aligned / growth), rel=1e-9)
