"""G grows linearly with depth, and F flows towards its fixed values.

Source   [DYZ23] §I.1.C, eqs. (1.36), (1.65), (1.77)
Expect   r² of a line through G above 0.99; its slope as predicted, within 4 joint standard errors
         and L/n; F of every block likewise, and ever nearer to the fixed F
Cost     smoke 10 s, laptop 2 min, paper 20 min on one core each
Differs  smoke: 6 encoders, n = 128; laptop: 12, n = 512; paper: 12, n = 768, C = 64; 8 pairs of
         (sample, position), patches of unit normals
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import torch
from torch import Tensor

from orderone.experiments.agreement import ERRORS, Comparison, compared, measurements
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.finite_networks import Measured
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.specimens import PATHS, vision
from orderone.report.charts import Picture, estimates
from orderone.report.page import Section
from orderone.theory.depth import fixed_kernel, growth
from orderone.theory.kernels import Kernels, kernels
from orderone.theory.softmax import Sampling
from orderone.theory.spec import InitialConstants

PUBLISHED = "G grows linearly with depth, F reaches fixed values at infinite depth"

C = {**PATHS, "position": 0.02**2}
D = 2
STRAIGHT = 0.99


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Depth's effect, by prediction and by measurement at one width."""

    width: int
    predicted: float
    """Slope of G_aa in pairs of attention and MLP."""
    r2: float
    measured: float
    error: float
    measured_r2: float
    granted: float
    """Relative bias: blocks over width."""

    @property
    def agrees(self) -> bool:
        gap = abs(self.measured - self.predicted)
        return gap <= ERRORS * self.error + self.granted * self.predicted

    @property
    def straight(self) -> bool:
        return min(self.r2, self.measured_r2) > STRAIGHT


def reproduce(stage: Stage) -> Outcome:
    """G and F block by block, at two or three widths."""
    encoders = stage.pick(smoke=6, laptop=12, paper=12)
    widths = stage.pick(smoke=[64, 128], laptop=[128, 256, 512], paper=[192, 384, 768])
    networks = stage.pick(smoke=12, laptop=32, paper=32)
    spec = vision(
        C,
        encoders=encoders,
        samples=stage.pick(smoke=2**12, laptop=2**16, paper=2**18),
        head_dim=stage.pick(smoke=16, laptop=32, paper=64),
        recursions=8,
    )
    runs = measurements(
        spec,
        widths,
        networks=networks,
        tangents=False,
        processes=stage.processes,
        progress=stage.progress,
    )
    found = Depth(predicted=kernels(spec), runs=runs)
    frame = by_depth(found)
    for row in frame.iter_rows(named=True):
        labels = {"width": str(row["width"])}
        stage.record(row["kernel"], row["measured"], step=row["block"], **labels)
        stage.record(f"{row['kernel']} error", row["error"], step=row["block"], **labels)
        stage.record(f"{row['kernel']} predicted", row["predicted"], step=row["block"])
    fixed = fixed_kernel(
        found.predicted.blocks[0].F,
        D=D,
        C=InitialConstants(**C),
        sampling=Sampling(count=512, seed=stage.seed),
        tolerance=1e-6,
        most=100_000,
    )
    return outcome(found, fixed)


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Every block's kernels at infinite width, and of networks by width."""

    predicted: Kernels
    runs: Mapping[int, Sequence[Measured]]

    @property
    def comparisons(self) -> list[Comparison]:
        """G and F of all blocks but the head."""
        return [
            each
            for n, runs in self.runs.items()
            for each in compared(self.predicted, runs, width=n, heads=None)
            if each.block != "head"
        ]


def outcome(found: Depth, fixed: Tensor) -> Outcome:
    """Straight, as steep as predicted, F as predicted and on its way."""
    lines = [growth_at(found, n) for n in found.runs]
    last = lines[-1]
    all_kernels = found.comparisons
    wrong = [each for each in all_kernels if not each.agrees]
    distance = distances(found, fixed)
    nearer = all(b < a for a, b in pairwise(distance))
    why = "" if nearer else "F does not come nearer to the fixed F with every pair."
    if wrong:
        worst = max(wrong, key=lambda each: each.excess)
        why = f"Worst: {worst.quantity} of {worst.block} at n = {worst.width}. {why}".strip()
    right = f"{len(all_kernels) - len(wrong)} of {len(all_kernels)}"
    return Outcome(
        measured=(
            f"over {found.predicted.spec.encoders} encoders G grows by {last.measured:.3f} ± "
            f"{last.error:.3f} a pair of blocks at n = {last.width}, predicted "
            f"{last.predicted:.3f} (r² {last.measured_r2:.4f}); {right} kernels G and F as "
            f"predicted; F's distance to its fixed values falls from {distance[0]:.2f} to "
            f"{distance[-1]:.2f}"
        ),
        held=all(line.straight and line.agrees for line in lines) and not wrong and nearer,
        why=why,
        sections=_sections(found, lines, distance),
    )


def growth_at(found: Depth, width: int) -> Growth:
    """Slope over the MLPs' outputs; every network's is one estimate."""
    predicted = growth(found.predicted.blocks, ending="mlp")
    places = [i for i, block in enumerate(found.predicted.blocks) if block.name.endswith("mlp")]
    G = torch.stack(
        [
            torch.stack([run["G", place].diagonal().mean() for place in places])
            for run in found.runs[width]
        ]
    )
    x = torch.arange(1.0, len(places) + 1, dtype=torch.float64)
    weight = (x - x.mean()) / (x - x.mean()).square().sum()
    slopes, y = G @ weight, G.mean(0)
    residual = (y - y.mean() - slopes.mean() * (x - x.mean())).square().sum()
    ours = [found.predicted.blocks[place].G_se.diagonal().mean() for place in places]
    return Growth(
        width=width,
        predicted=predicted.slope,
        r2=predicted.r2,
        measured=float(slopes.mean()),
        error=math.hypot(
            float(slopes.std()) / math.sqrt(len(slopes)), float((weight * torch.stack(ours)).norm())
        ),
        measured_r2=float(1 - residual / (y - y.mean()).square().sum()),
        granted=len(found.predicted.blocks) / width,
    )


def distances(found: Depth, fixed: Tensor) -> list[float]:
    """R.m.s. over pairs of F − F* at the stem and after every pair of blocks, as predicted."""
    blocks = [b for b in found.predicted.blocks if b.name == "stem" or b.name.endswith("mlp")]
    away = ~torch.eye(len(fixed), dtype=torch.bool)
    return [float((b.F - fixed)[away].square().mean().sqrt()) for b in blocks]


def by_depth(found: Depth) -> pl.DataFrame:
    """Means over the diagonal of G, and over all other pairs of F, with standard errors."""
    rows: list[dict[str, str | int | float]] = []
    for n, runs in found.runs.items():
        for place, block in enumerate(found.predicted.blocks[:-1]):
            for kernel, read in (("G", _diagonal), ("F", _others)):
                values = torch.stack([read(run[kernel, place]) for run in runs])
                rows.append(
                    {
                        "kernel": kernel,
                        "width": n,
                        "block": place,
                        "name": block.name,
                        "measured": float(values.mean()),
                        "error": float(values.std()) / math.sqrt(len(values)),
                        "predicted": float(read(getattr(block, kernel))),
                    }
                )
    return pl.DataFrame(rows)


def _diagonal(K: Tensor) -> Tensor:
    return K.diagonal().mean()


def _others(K: Tensor) -> Tensor:
    return (K.sum() - K.trace()) / (len(K) * (len(K) - 1))


def _sections(found: Depth, lines: Sequence[Growth], distance: Sequence[float]) -> list[Section]:
    frame = by_depth(found)
    return [
        Section(
            heading="G by depth",
            chart=_chart(frame, "G", "G, mean over the diagonal", "G grows linearly with depth"),
            alternative="Measured G against the block, on the predicted straight line",
        ),
        Section(
            heading="F by depth",
            chart=_chart(frame, "F", "F, mean over other pairs", "F flows with depth"),
            alternative="Measured F of different positions against the block, on the prediction",
        ),
        Section(
            heading="Slopes",
            columns=("width", "predicted", "measured", "± se", "r² predicted", "r² measured"),
            rows=[
                [
                    str(line.width),
                    f"{line.predicted:.4f}",
                    f"{line.measured:.4f}",
                    f"{line.error:.4f}",
                    f"{line.r2:.5f}",
                    f"{line.measured_r2:.5f}",
                ]
                for line in lines
            ],
        ),
        Section(
            heading="Distance of F to its fixed values",
            text="R.m.s. over pairs of different (sample, position). What a pair of blocks adds is "
            "ever less beside G, so that F moves as log ℓ and infinite depth is far away.",
            columns=("after pair", "distance"),
            rows=[[str(i), f"{x:.4f}"] for i, x in enumerate(distance)],
        ),
    ]


def _chart(frame: pl.DataFrame, kernel: str, label: str, title: str) -> Picture:
    shown = frame.filter(kernel=kernel).select(
        "name", "block", "measured", "error", "predicted", n=pl.format("n = {}", "width")
    )
    return estimates(
        shown,
        x=("block", "block (0 is the stem)"),
        y=("measured", label),
        error="error",
        colour=("n", "width"),
        reference=("predicted", "predicted at n → ∞"),
        title=title,
        subtitle="attention and MLP in turn",
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("kernels at initialisation of 12 encoders, n up to 768, 32 networks a width")
