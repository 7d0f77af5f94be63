"""Norms, directions, steps and alignments of a series, from its inner products alone.

θ_t are the parameters of one group at checkpoint t, δ_t = θ_{t+1} − θ_t, [MRGSS21] §3 and §5.5.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from orderone.trajectory.gram import PRODUCT, REST, SQUARE

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What successive checkpoints say of one group; K values, or K − 1 for what lies between two.

    Numbers that do not exist (the angle of a zero vector) are NaN.
    """

    norm: Float
    step_norm: Float
    alignment: Float
    one_minus_cosine: Float

    @property
    def cosine_next(self) -> Float:
        """cos(θ_t, θ_{t+1})."""
        return 1 - self.one_minus_cosine

    @property
    def share(self) -> float:
        """Part of ‖θ_end‖² − ‖θ_0‖² = Σ 2θ·δ + Σ‖δ‖² that the first sum, alignment, carries."""
        return alignment_share(self.norm, self.step_norm)


def alignment_share(norm: Float, step_norm: Float) -> float:
    """Alignment's share of growth, 1 − Σ‖δ‖²/(‖θ_end‖² − ‖θ_0‖²); NaN where nothing grew."""
    growth = norm[-1] ** 2 - norm[0] ** 2
    return float(1 - np.sum(step_norm**2) / growth) if growth != 0 else float("nan")


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """What every pair of checkpoints says of one group; K × K, first index the earlier."""

    square: Float
    """‖θ_i‖²."""
    distance_squared: Float
    """‖θ_j − θ_i‖²."""
    along: Float
    """θ_i·(θ_j − θ_i), for j > i; the mirrored entries are θ_j·(θ_i − θ_j)."""

    @cached_property
    def norm(self) -> Float:
        return np.sqrt(np.maximum(self.square, 0.0))

    @cached_property
    def distance(self) -> Float:
        return np.sqrt(np.maximum(self.distance_squared, 0.0))

    @cached_property
    def one_minus_cosine(self) -> Float:
        """1 − cos(θ_i, θ_j)."""
        return _one_minus_cosine(
            self.square[:, None], self.distance_squared, self.along, self.square[None, :]
        )

    @cached_property
    def alignment(self) -> Float:
        """cos(θ_j − θ_i, θ_i): at every lag, j > i."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.along / (self.norm[:, None] * self.distance)

    def without(self, dropped: set[int]) -> "Pairs":
        """The same series less some checkpoints; steps then reach over the gaps."""
        kept = [i for i in range(len(self.square)) if i not in dropped]
        both = np.ix_(kept, kept)
        return Pairs(
            square=self.square[kept],
            distance_squared=self.distance_squared[both],
            along=self.along[both],
        )

    def neighbours(self) -> Neighbours:
        """The successive pairs."""
        return Neighbours(
            norm=self.norm,
            step_norm=np.diagonal(self.distance, 1).copy(),
            alignment=np.diagonal(self.alignment, 1).copy(),
            one_minus_cosine=np.diagonal(self.one_minus_cosine, 1).copy(),
        )

    def share(self, lag: int) -> float:
        """Alignment's share of growth at a spacing of ``lag`` checkpoints."""
        last = (len(self.norm) - 1) // lag * lag
        at = np.arange(0, last + 1, lag)
        return alignment_share(self.norm[at], self.distance[at[:-1], at[1:]])

    @cached_property
    def components(self) -> tuple[Float, Float]:
        """Variances along the path's principal components, and its coordinates on them, K × K.

        Classical scaling of the distances: the Gram matrix of θ_i − mean is −½ J D² J.
        """
        count = len(self.square)
        centre = np.eye(count) - 1 / count
        values, vectors = np.linalg.eigh(-0.5 * centre @ self.distance_squared @ centre)
        values = np.maximum(values[::-1], 0.0)
        return values / count, vectors[:, ::-1] * np.sqrt(values)

    @property
    def effective_dimension(self) -> float:
        """(Σλ)²/Σλ² of the path's variances λ: how many components it spreads over."""
        variances, _ = self.components
        spread = float(np.sum(variances**2))
        return float(np.sum(variances)) ** 2 / spread if spread else 0.0


def pairs_of(gram: Float) -> Pairs:
    """All pairs from the Gram matrix of (θ_0, δ_0, …, δ_{K−2}); only sums along the path."""
    count = len(gram)
    onto = np.cumsum(gram, axis=0)  # ⟨θ_i, δ_{k−1}⟩, and ⟨θ_i, θ_0⟩ in column 0
    along = np.zeros((count, count))
    distance = np.zeros((count, count))
    for i in range(count):
        later = slice(i + 1, count)
        along[i, later] = np.cumsum(onto[i, later])
        within = np.cumsum(np.cumsum(gram[later, later], axis=0), axis=1)
        distance[i, later] = distance[later, i] = np.diagonal(within)
        # θ_j·(θ_i − θ_j) = −⟨θ_i, D⟩ − ‖D‖² with D = θ_j − θ_i.
        along[later, i] = -along[i, later] - distance[i, later]
    square = np.diagonal(np.cumsum(onto, axis=1)).copy()
    return Pairs(square=square, distance_squared=distance, along=along)


def neighbours_of(sums: Float, tilts: Float) -> Neighbours:
    """Successive pairs from ‖θ_i‖², ‖r_i‖² and θ_i·r_i, where δ_i = r_i + t_i θ_i."""
    t = tilts[:-1].astype(np.float32).astype(np.float64)
    square, rest, product = sums[:, SQUARE], sums[:-1, REST], sums[:-1, PRODUCT]
    step = np.maximum(rest + 2 * t * product + t**2 * square[:-1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        alignment = (t * square[:-1] + product) / np.sqrt(square[:-1] * step)
    return Neighbours(
        norm=np.sqrt(square),
        step_norm=np.sqrt(step),
        alignment=alignment,
        one_minus_cosine=_one_minus_cosine(square[:-1], rest, product, square[1:], 1 + t),
    )


def _one_minus_cosine(
    square: Float, rest: Float, product: Float, other: Float, grown: Float | float = 1.0
) -> Float:
    """1 − cos(a, b) for b = ga + r: sin² = (‖a‖²‖r‖² − (a·r)²)/(‖a‖²‖b‖²), then sin²/(1 + cos)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (grown * square + product) / np.sqrt(square * other)
        sine = np.maximum(square * rest - product**2, 0.0) / (square * other)
        return np.where(cosine > 0, sine / (1 + cosine), 1 - cosine)
