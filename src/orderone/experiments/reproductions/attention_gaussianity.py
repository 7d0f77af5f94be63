"""Products of queries and keys are jointly Gaussian as heads grow large, and heads independent.

Source   [DYZ23] App. A, eqs. (A3)–(A6)
Expect   excess kurtosis ∝ 1/C, exponent −1 within 0.1; odd moments and the correlation of squares
         between heads 0 within 4 standard errors; covariance C_Q C_K F F within 4 and 2/n
Cost     smoke 10 s, laptop 2 min, paper 1 h on one core each
Differs  4 heads of C channels, n = 4C, up to C = 16 (smoke), 64 (laptop), 192 (paper, n = 768);
         8 positions of a sample of patches of unit normals
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from orderone.core.generators import generator_for
from orderone.experiments.agreement import ERRORS
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.slope import Estimate, exponent
from orderone.experiments.specimens import patches
from orderone.experiments.workers import workers
from orderone.models.attention import Attention
from orderone.models.config import VisionConfig
from orderone.probes.kernel import normalised
from orderone.report.charts import Picture, estimates
from orderone.report.page import Section
from orderone.theory.layernorm import layer_norm
from orderone.theory.signal import Rates, Signal
from orderone.theory.stem import patch_kernel, stem

PUBLISHED = "Gaussian up to O(1/C): covariance (A3)–(A6), odd moments vanish, heads independent"

H = 4
C_QK = 1.0
C_PE = 0.3
T = 8
EPSILON = 1e-6
BATCHES = 20
"""Parts of the draws, whose spread is the standard error."""
LAW = -1.0
WITHIN = 0.1


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Estimates at one C, each a mean with its standard error."""

    C: int
    kurtosis: tuple[float, float]
    """E[Ω̃⁴]/E[Ω̃²]² − 3."""
    third: tuple[float, float]
    """E[Ω̃_1 Ω̃_2 Ω̃_3], scaled: over all positions of one query, (Σ Ω̃)³."""
    heads: tuple[float, float]
    """Correlation of mean squares between two heads of one network: 0."""
    products: tuple[float, float]
    """The same of Σ Ω̃_1 Ω̃_2 F F: O(1/n), since a network's own F is common to its heads."""
    covariance: tuple[float, float]
    """Overlap of the measured covariance with C_Q C_K F F: 1."""

    @property
    def vanish(self) -> bool:
        """Odd moments and what heads have in common, within 4 standard errors and O(1/n)."""
        exact = all(abs(value) <= ERRORS * se for value, se in (self.third, self.heads))
        value, se = self.products
        return exact and abs(value) <= ERRORS * se + T / (H * self.C)

    @property
    def as_predicted(self) -> bool:
        """The covariance, up to O(1/n)."""
        value, se = self.covariance
        return abs(value - 1) <= ERRORS * se + 2 / (H * self.C)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Networks whose scores are drawn."""

    C: int
    networks: int
    seed: int
    batch: int


def reproduce(stage: Stage) -> Outcome:
    """Scores of many networks at each C."""
    channels = stage.pick(
        smoke=[2, 4, 8, 16], laptop=[4, 8, 16, 32, 64], paper=[12, 24, 48, 96, 192]
    )
    networks = stage.pick(smoke=60, laptop=1000, paper=8000)
    draws = [
        Draw(C=C, networks=networks, seed=stage.seed, batch=i)
        for C in channels
        for i in range(BATCHES)
    ]
    drawn: dict[int, dict[str, float]] = {}
    with workers(statistics, processes=stage.processes) as spread:
        for done, (index, found) in enumerate(spread(draws), start=1):
            drawn[index] = found
            stage.progress(done, len(draws))
    found = [
        moments(C, [drawn[place * BATCHES + i] for i in range(BATCHES)])
        for place, C in enumerate(channels)
    ]
    for each in found:
        for name in ("kurtosis", "third", "heads", "products", "covariance"):
            value, se = getattr(each, name)
            stage.record(name, value, step=each.C)
            stage.record(f"{name} error", se, step=each.C)
    return outcome(found, networks * BATCHES)


def statistics(draw: Draw) -> dict[str, float]:
    """Averages over a batch of networks."""
    F = signal_kernel(draw.C)
    generator = generator_for(draw.seed, f"scores at C = {draw.C}, batch {draw.batch}")
    attention = Attention(VisionConfig(n=H * draw.C, H=H, encoders=1)).double()
    Omega_tilde = torch.stack([scores(attention, generator) for _ in range(draw.networks)])
    return averages(Omega_tilde, F)


def averages(Omega_tilde: Float[Tensor, "w h t t"], F: Float[Tensor, "t t"]) -> dict[str, float]:
    """What a batch of scores has to say, heads after networks."""
    sums = Omega_tilde.sum(-1) / math.sqrt(float(F.sum()) * C_QK**2)
    # ⟨Ω̃ Ω̃, F F⟩ of a draw: its mean is C_Q C_K ‖F‖⁴ where the covariance is C_Q C_K F F.
    aligned = ((F @ Omega_tilde @ F) * Omega_tilde).sum((-1, -2))
    quadratic = Omega_tilde.square().mean((-1, -2))
    return {
        "kurtosis": excess_kurtosis(Omega_tilde),
        "third": float(sums.pow(3).mean()),
        "heads": between_heads(quadratic),
        "products": between_heads(aligned),
        "covariance": float(aligned.mean() / (C_QK**2 * F.square().sum() ** 2)),
    }


def excess_kurtosis(x: Tensor) -> float:
    """E[x⁴]/E[x²]² − 3 of numbers of one variance and mean zero: 0 of Gaussians."""
    return float(x.pow(4).mean() / x.square().mean().square() - 3)


def between_heads(x: Float[Tensor, "w h"]) -> float:
    """Correlation over networks between neighbouring heads."""
    away = x - x.mean()
    return float((away[:, :-1] * away[:, 1:]).mean() / away.square().mean())


def moments(C: int, parts: Sequence[Mapping[str, float]]) -> Moments:
    """Means over the batches, with their standard errors."""

    def bars(name: str) -> tuple[float, float]:
        values = torch.tensor([part[name] for part in parts], dtype=torch.float64)
        return float(values.mean()), float(values.std()) / math.sqrt(len(values))

    names = ("kurtosis", "third", "heads", "products", "covariance")
    return Moments(C=C, **{name: bars(name) for name in names})


@torch.no_grad()
def scores(attention: Attention, generator: torch.Generator) -> Float[Tensor, "h t t"]:
    """Ω̃ = q·k/√C of a network: its own stem, its own Q and K, [DYZ23] eq. (1.13)–(1.16)."""
    x = patches(1, T)[0]
    n = attention.Q.in_features

    def normal(*shape: int, variance: float) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn * math.sqrt(variance)

    W = normal(n, x.shape[1], variance=1 / x.shape[1])
    s = normalised(x @ W.mT + normal(T, n, variance=C_PE), EPSILON)[None]
    for weight in (attention.Q.weight, attention.K.weight):
        nn.init.normal_(weight, std=math.sqrt(C_QK / n), generator=generator)
    q, k = attention.split(attention.Q(s)), attention.split(attention.K(s))
    return (attention.scale * (q @ k.mT))[0]


def signal_kernel(C: int) -> Float[Tensor, "t t"]:
    """F of the layer-normalised stem, at infinite width."""
    rates = Rates(Lambda={"patch": 0.0, "position": 0.0}, split=False)
    z = stem(patch_kernel(patches(1, T)), D=1, group="patch", C_input=1.0, C_PE=C_PE, rates=rates)
    return layer_norm(Signal(G=z.G, Theta={}), EPSILON).G


def outcome(found: Sequence[Moments], networks: int) -> Outcome:
    """The law of the kurtosis, and all else as it should be."""
    slope = kurtosis_law(found)
    predicted = max(abs(each.kurtosis[0] - 6 / each.C) / each.kurtosis[1] for each in found)
    vanish = all(each.vanish for each in found)
    covariance = all(each.as_predicted for each in found)
    lawful = slope is not None and abs(slope.value - LAW) <= WITHIN
    last = found[-1]
    law = (
        "not positive at every C"
        if slope is None
        else f"∝ C^{slope.value:.3f} ± {slope.high - slope.value:.3f}"
    )
    wrong = [
        what
        for what, right in (
            ("The kurtosis has another law.", lawful),
            ("An odd moment, or what heads have in common, is not 0.", vanish),
            ("The covariance is not C_Q C_K F F.", covariance),
        )
        if not right
    ]
    return Outcome(
        measured=(
            f"excess kurtosis {law} over C = {found[0].C} … {last.C} "
            f"({last.kurtosis[0]:.4f} ± {last.kurtosis[1]:.4f} at C = {last.C}, 6/C is "
            f"{6 / last.C:.4f}); third moment {last.third[0]:+.4f} ± {last.third[1]:.4f}, "
            f"correlation between heads {last.heads[0]:+.4f} ± {last.heads[1]:.4f}, overlap with "
            f"C_Q C_K F F {last.covariance[0]:.4f} ± {last.covariance[1]:.4f}; {networks:,} "
            f"networks at each C"
        ),
        held=not wrong,
        why=" ".join(wrong)
        or f"A sum of C independent products of two normals has excess kurtosis 6/C: "
        f"all within {predicted:.1f} standard errors of it.",
        sections=_sections(found, networks),
    )


def kurtosis_law(found: Sequence[Moments]) -> Estimate | None:
    """Exponent of C, its interval from the standard errors; None where some is not positive."""
    if min(each.kurtosis[0] for each in found) <= 0:
        return None
    value = exponent([each.C for each in found], [each.kurtosis[0] for each in found])
    x = torch.tensor([math.log(each.C) for each in found], dtype=torch.float64)
    weight = (x - x.mean()) / (x - x.mean()).square().sum()
    relative = torch.tensor([se / k for k, se in (each.kurtosis for each in found)])
    reach = 1.96 * float((weight * relative).norm())
    return Estimate(value=value, low=value - reach, high=value + reach)


def _sections(found: Sequence[Moments], networks: int) -> list[Section]:
    return [
        Section(
            heading="Excess kurtosis",
            chart=kurtosis_chart(found, networks),
            alternative="Excess kurtosis of scores against channels of a head, on the line 6/C",
        ),
        Section(
            heading="All moments",
            text="Third: of the sum over keys of a query's scores, in units of its deviation. "
            "Heads: correlation of the mean squares of two heads; products: of Σ Ω̃ Ω̃ F F, of order "
            "1/n, since heads share their network's F. Overlap: of the covariance with "
            "C_Q C_K F F. Each with its standard error.",
            columns=(
                "C",
                "n",
                "excess kurtosis",
                "6/C",
                "third moment",
                "heads",
                "products",
                "overlap",
            ),
            rows=[
                [
                    str(each.C),
                    str(H * each.C),
                    _shown(each.kurtosis),
                    f"{6 / each.C:.4f}",
                    _shown(each.third),
                    _shown(each.heads),
                    _shown(each.products),
                    _shown(each.covariance),
                ]
                for each in found
            ],
        ),
    ]


def kurtosis_chart(found: Sequence[Moments], networks: int) -> Picture:
    """On log–log axes, with 6/C."""
    frame = pl.DataFrame(
        {
            "C": [each.C for each in found],
            "kurtosis": [each.kurtosis[0] for each in found],
            "error": [each.kurtosis[1] for each in found],
            "6/C": [6 / each.C for each in found],
        }
    )
    return estimates(
        frame,
        x=("C", "channels of a head C"),
        y=("kurtosis", "excess kurtosis of q·k/√C"),
        error="error",
        reference=("6/C", "6/C"),
        title="Scores become Gaussian as 1/C",
        subtitle=f"{networks:,} networks of {H} heads at each C",
        log_x=True,
        log_y=True,
    )


def _shown(bars: tuple[float, float]) -> str:
    return f"{bars[0]:+.4f} ± {bars[1]:.4f}"


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("scores at initialisation, C up to 192 at n = 768, 160,000 networks at each C")
