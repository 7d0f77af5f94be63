"""How alignment and step size go between the checkpoints of a training, [MRGSS21] §5.5, Fig. 5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderone.trajectory.geometry import Neighbours

HIGH, NEAR_0 = 0.3, 0.05


@dataclass(frozen=True, kw_only=True)
class Course:
    """Of one group of parameters."""

    peak: float
    """Largest |cos(δ, θ)|, after the first spacing."""
    end: float
    change: float
    """Largest less smallest ‖δ‖ over the second half but the last spacing, which is shorter."""

    @classmethod
    def of(cls, group: Neighbours) -> Course:
        sizes = group.step_norm[len(group.step_norm) // 2 : -1]
        return cls(
            peak=float(np.max(np.abs(group.alignment[1:]))),
            end=float(group.alignment[-1]),
            change=float(np.ptp(sizes)),
        )

    @property
    def falls(self) -> bool:
        return self.peak <= HIGH and abs(self.end) < NEAR_0

    @property
    def sentence(self) -> str:
        return (
            f"|cos(δ, θ)| peaks at {self.peak:.3f} and ends at {self.end:.3f}, ‖δ‖ changes by "
            f"{self.change:.2g} over the second half"
        )
