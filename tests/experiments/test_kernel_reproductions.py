"""Reproductions at initialisation: estimators find what is planted, verdicts what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from orderone.experiments.agreement import Agreement, agreement, compared, measurements
from orderone.experiments.coordinates import Coordinates
from orderone.experiments.reproductions import (
    attention_gaussianity,
    coordinates,
    gradient_sizes,
    kernel_agreement,
    kernel_growth,
    tangent_agreement,
)
from orderone.experiments.reproductions.attention_gaussianity import Draw, H, Moments, T
from orderone.experiments.specimens import language, vision
from orderone.experiments.without_scores import tangent_without_scores
from orderone.theory.kernels import kernels
from orderone.theory.spec import KernelSpec

FEW = {"samples": 2**12, "recursions": 8, "head_dim": 16}


def gaussian_scores(count: int, F: torch.Tensor) -> torch.Tensor:
    """Jointly Gaussian with covariance F F: √F Z √F."""
    generator = torch.Generator().manual_seed(0)
    A = torch.linalg.cholesky(F)
    return A @ torch.randn(count, H, T, T, dtype=F.dtype, generator=generator) @ A.mT


def moments_of(Omega_tilde: torch.Tensor, C: int = 10**6) -> Moments:
    F = attention_gaussianity.signal_kernel(C)
    parts = Omega_tilde.chunk(attention_gaussianity.BATCHES)
    return attention_gaussianity.moments(
        C, [attention_gaussianity.averages(part, F) for part in parts]
    )


def test_gaussian_scores_are_found_gaussian() -> None:
    F = attention_gaussianity.signal_kernel(16)
    found = moments_of(gaussian_scores(4000, F))
    assert abs(found.kurtosis[0]) <= 4 * found.kurtosis[1]
    assert found.vanish
    assert found.as_predicted


@pytest.mark.parametrize("what", ["kurtosis", "third", "heads", "covariance"])
def test_scores_that_are_not_gaussian_and_independent_are_found(what: str) -> None:
    F = attention_gaussianity.signal_kernel(16)
    Omega_tilde = gaussian_scores(4000, F)
    generator = torch.Generator().manual_seed(1)
    size = torch.randn(4000, 1, 1, 1, dtype=F.dtype, generator=generator).abs()
    planted = {
        "kurtosis": Omega_tilde * Omega_tilde.abs(),
        "third": Omega_tilde + Omega_tilde.square(),
        "heads": Omega_tilde * size,
        "covariance": 1.1 * Omega_tilde,
    }
    found = moments_of(planted[what])
    if what == "kurtosis":
        assert found.kurtosis[0] > 10 * found.kurtosis[1]
    elif what == "covariance":
        assert not found.as_predicted
    else:
        value, se = getattr(found, what)
        assert abs(value) > 4 * se
        assert not found.vanish


def test_scores_of_c_channels_have_excess_kurtosis_6_over_c() -> None:
    """A product of two unit normals has a fourth moment of 9; 4 standard errors."""
    for C in (2, 8):
        parts = [
            attention_gaussianity.statistics(Draw(C=C, networks=60, seed=0, batch=i))
            for i in range(8)
        ]
        found = attention_gaussianity.moments(C, parts)
        assert found.kurtosis[0] == pytest.approx(6 / C, abs=4 * found.kurtosis[1])
        assert 4 * found.kurtosis[1] < 0.6 * 6 / C


def at_every_C(kurtosis: float, power: float, third: float = 0.0) -> list[Moments]:
    return [
        Moments(
            C=C,
            kurtosis=(kurtosis * C**power, 1e-3),
            third=(third, 0.01),
            heads=(0.0, 0.01),
            products=(0.01, 0.01),
            covariance=(1.0, 0.01),
        )
        for C in (4, 8, 16)
    ]


def test_the_law_of_the_kurtosis_decides() -> None:
    law = attention_gaussianity.kurtosis_law(at_every_C(6, -1))
    assert law is not None
    assert law.value == pytest.approx(-1, abs=1e-9)
    assert attention_gaussianity.outcome(at_every_C(6, -1), 100).held
    assert attention_gaussianity.outcome(at_every_C(6, -0.8), 100).held is False
    assert attention_gaussianity.outcome(at_every_C(-6, -1), 100).held is False
    assert attention_gaussianity.outcome(at_every_C(6, -1, third=0.1), 100).held is False


def depth(spec: KernelSpec, **wrong: float) -> kernel_growth.Depth:
    """Networks of the spec beside the prediction for other constants."""
    runs = measurements(spec, [64], networks=8, tangents=False)
    C = {**kernel_growth.C, **wrong}
    return kernel_growth.Depth(predicted=kernels(spec.replace(C=C)), runs=runs)


def test_growth_is_as_predicted_and_a_wrong_constant_is_found() -> None:
    spec = vision(kernel_growth.C, encoders=3, **FEW)
    right = depth(spec)
    fixed = torch.full((8, 8), 1.0, dtype=torch.float64)
    assert kernel_growth.outcome(right, fixed).held
    line = kernel_growth.growth_at(right, 64)
    slope = right.predicted.blocks[-2].G.diagonal() - right.predicted.blocks[2].G.diagonal()
    assert line.predicted == pytest.approx(float(slope.mean()) / 2, rel=1e-9)  # three points
    wrong = replace(right, predicted=depth(spec, X=3.2).predicted)
    assert not kernel_growth.growth_at(wrong, 64).agrees
    assert kernel_growth.outcome(wrong, fixed).held is False
    assert kernel_growth.outcome(right, right.predicted.blocks[0].F).held is False, "F goes away"


def test_a_wrong_constant_makes_the_kernels_disagree() -> None:
    spec = vision(kernel_agreement.C, **FEW)
    right = agreement(spec, [32, 64, 128], networks=12, tangents=False)
    case = kernel_agreement.Case(name="vision", wide=right, narrow=right)
    assert kernel_agreement.outcome([case]).held
    # The networks' kernels beside the prediction for another C_V.
    other = kernels(spec.replace(C={**kernel_agreement.C, "V": 3.0}))
    runs = measurements(spec, [128], networks=12, tangents=False)[128]
    comparisons = tuple(compared(other, runs, width=128, heads=None))
    wrong = replace(right, comparisons=(*right.comparisons[:-8], *comparisons))
    outcome = kernel_agreement.outcome([replace(case, wide=wrong)])
    assert outcome.held is False
    assert outcome.why.startswith("Worst: G of")


def tangents(spec: KernelSpec) -> Agreement:
    return agreement(spec, [128], networks=8)


def test_without_scores_nothing_is_missing_where_there_are_none() -> None:
    """C_Q = 0: every score is 0, so J's terms vanish and both predictions are one."""
    for spec in (vision({"Q": 0.0}, encoders=2, samples=256), language({"Q": 0.0}, samples=256)):
        expected = kernels(spec).head.Theta
        assert torch.allclose(tangent_without_scores(spec), expected, rtol=1e-10)
    strong = vision(tangent_agreement.C, **FEW)
    assert tangent_without_scores(strong).trace() < 0.9 * kernels(strong).head.Theta.trace()


def test_a_prediction_without_j_is_excluded() -> None:
    spec = vision(tangent_agreement.C, by_group=True, **FEW)
    found = tangents(spec)
    without = tangent_agreement.dropped(found)
    case = tangent_agreement.Case(name="vision, SGD", found=found, without=without)
    assert without.overlap > 1.3
    assert tangent_agreement.outcome([case]).held
    (right,) = (e for e in found.comparisons if e.quantity == "Theta of position")
    assert tangent_agreement.outcome([replace(case, without=right)]).held is False
    swapped = replace(right, predicted=without.predicted, overlaps=without.overlaps)
    wrong = replace(found, comparisons=(*found.comparisons, swapped))
    assert tangent_agreement.outcome([replace(case, found=wrong)]).held is False


def sized(power: float, times: float = 1.0) -> gradient_sizes.Group:
    """|g| of W with γ = 2, at three widths, of four networks."""
    spread = (0.98, 0.99, 1.01, 1.02)
    sizes = {
        n: [times * 2.0 / 2 * n**power * (128 ** (-0.5 - power)) * each for each in spread]
        for n in (32, 64, 128)
    }
    return gradient_sizes.Group(network="vision", group="W", sizes=sizes, predicted=2.0, blocks=4)


def test_sizes_of_gradients_have_their_law_and_their_size() -> None:
    assert sized(-0.5).slope.value == pytest.approx(-0.5, abs=1e-9)
    assert sized(-0.5).ratio(128)[0] == pytest.approx(1.0), "2/√(Mn) with M = 4"
    assert gradient_sizes.outcome([sized(-0.5)]).held
    assert gradient_sizes.outcome([sized(-0.35)]).held is False
    assert gradient_sizes.outcome([sized(-0.5, times=1.3)]).held is False
    assert "1.30 times" in gradient_sizes.outcome([sized(-0.5, times=1.3)]).why


def test_every_group_of_the_paper_is_measured() -> None:
    specs = gradient_sizes.specs(1, 2**12)
    tasks = {name: gradient_sizes.Task(spec=s, width=64, index=0) for name, s in specs.items()}
    groups = {group for task in tasks.values() for group in gradient_sizes.measured(task)}
    assert groups == {"patch", "word", "position", *"QKVUWX", "head", "head_bias"}
    for name, task in tasks.items():
        found = gradient_sizes.measured(task)
        assert found["head_bias"] == pytest.approx(1 / math.sqrt(64), rel=1e-6), name


def checked(strategy: str, widths: Sequence[int] = (32, 64, 128)) -> Coordinates:
    return coordinates.checked(
        coordinates.Task(
            strategy=strategy, widths=tuple(widths), encoders=1, channels=16, seeds=2, steps=1
        )
    )


def test_a_strategy_that_grows_fails_the_claim() -> None:
    flat, growing = checked("maximal-update", (64, 128, 256)), checked("standard")
    three = dict.fromkeys(("neural-tangent", "hybrid", "maximal-update"), flat)
    assert coordinates.outcome({**three, "standard": growing}).held
    assert coordinates.outcome({**three, "standard": flat}).held is False
    assert coordinates.outcome({**three, "hybrid": growing, "standard": growing}).held is False


def test_the_papers_scale_is_known_without_running_it() -> None:
    assert coordinates.paper().parameters > 8e7
    for module in (kernel_growth, kernel_agreement, tangent_agreement, gradient_sizes):
        assert "n up to 768" in module.paper().note
