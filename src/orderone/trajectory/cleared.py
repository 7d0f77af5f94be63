"""The series less the checkpoints that are wrong, and a finding for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from orderone.trajectory.anomalies import (
    duplicates,
    elsewhere,
    misfit,
    near_norms,
    near_pairs,
    off_path,
    over_one_step,
    stretches,
)
from orderone.trajectory.checkpoint import Checkpoint
from orderone.trajectory.findings import Finding
from orderone.trajectory.geometry import Neighbours, Pairs, neighbours_of, pairs_of
from orderone.trajectory.one_pass import Pairing, Sums
from orderone.trajectory.rounding import DIGITS

Float = npt.NDArray[np.float64]

_DROWNED = 1e5  # a jump over the usual step: float64 then holds the distance past it to 1e-6
_INFLATED = 1.05  # a step as stored over the same without rounding: from here on it is told


@dataclass(frozen=True, kw_only=True)
class Cleared:
    """The checkpoints that are left, and their geometry by group."""

    checkpoints: Sequence[Checkpoint]
    neighbours: Mapping[str, Neighbours]
    pairs: Mapping[str, Pairs]
    unrounded: Mapping[str, Float]
    findings: Sequence[Finding]
    drowning: Mapping[str, Finding]
    """Checkpoints so far off the path that in their sums all other distances are lost."""


def cleared(
    checkpoints: Sequence[Checkpoint], sums: Sums, pairing: Pairing, everything: str
) -> Cleared:
    """Leave out what could not be read, what equals another, what is off the path, in turn."""
    measured = _Measured(checkpoints, sums, pairing)
    wrong = dict(sums.bad)
    wrong |= measured.repeated(everything, set(wrong))
    wrong |= measured.strayed(everything, set(wrong))
    kept = [i for i in range(len(checkpoints)) if i not in wrong]
    rounded = measured.rounded(everything, kept)
    neighbours = {group: measured.neighbours(group, kept) for group in sums.groups}
    unrounded = {group: np.sqrt(measured.jumps(group, kept)) for group in sums.groups}
    findings = {**wrong, **rounded}
    return Cleared(
        checkpoints=[checkpoints[i] for i in kept],
        neighbours=neighbours,
        pairs={g: measured.pairs[g].without(set(wrong)) for g in measured.pairs},
        unrounded=unrounded if rounded else {},
        findings=[findings[i] for i in sorted(findings)],
        drowning={checkpoints[i].name: wrong[i] for i in measured.drowning(set(wrong))},
    )


class _Measured:
    """The sums of a pass as geometry, with any checkpoints left out."""

    def __init__(self, checkpoints: Sequence[Checkpoint], sums: Sums, pairing: Pairing) -> None:
        self.checkpoints = checkpoints
        self.sums = sums
        self.steps = np.array([each.step for each in checkpoints], dtype=np.float64)
        self.pairs = (
            {group: pairs_of(gram) for group, gram in sums.groups.items()}
            if pairing == "all"
            else {}
        )

    def neighbours(self, group: str, kept: Sequence[int]) -> Neighbours:
        """Successive pairs of those kept.

        Across a gap all pairs tell; else only a gap in which one step is not 0 is known, or NaN.
        """
        if group in self.pairs:
            left_out = set(range(len(self.checkpoints))) - set(kept)
            return self.pairs[group].without(left_out).neighbours()
        whole = neighbours_of(self.sums.groups[group], self.sums.tilts)
        between = [_only_step(whole.step_norm, a, b) for a, b in pairwise(kept)]

        def chosen(values: Float) -> Float:
            return np.array([values[a] if a >= 0 else np.nan for a in between])

        return Neighbours(
            norm=whole.norm[list(kept)],
            step_norm=chosen(whole.step_norm),
            alignment=chosen(whole.alignment),
            one_minus_cosine=chosen(whole.one_minus_cosine),
        )

    def jumps(self, group: str, kept: Sequence[int]) -> Float:
        """‖δ‖² between successive ones without rounding; across a gap as stored."""
        stored = self.neighbours(group, kept).step_norm ** 2
        for place, (a, b) in enumerate(pairwise(kept)):
            if b == a + 1:
                stored[place] = self.sums.unrounded[group][a]
        return np.maximum(stored, 0.0)

    def repeated(self, group: str, wrong: set[int]) -> dict[int, Finding]:
        """Checkpoints whose weights are another's."""
        kept = [i for i in range(len(self.checkpoints)) if i not in wrong]
        left = [self.checkpoints[i] for i in kept]
        steps = self.steps[kept]
        if group in self.pairs:
            whole = self.pairs[group].without(wrong)
            near, distance = (
                near_pairs(whole.distance_squared, whole.square),
                whole.distance_squared,
            )
        else:
            each = self.neighbours(group, kept)
            near = near_norms(each.norm, each.step_norm)
            distance = over_one_step(each.step_norm)
        scale = float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0
        found = duplicates(left, near, lambda i, others: misfit(distance / scale, steps, i, others))
        return {kept[i]: finding for i, finding in found.items()}

    def strayed(self, group: str, wrong: set[int]) -> dict[int, Finding]:
        """Checkpoints far off the path of the others."""
        kept = [i for i in range(len(self.checkpoints)) if i not in wrong]
        jumps = np.sqrt(self.jumps(group, kept))
        distance = self.pairs[group].without(wrong).distance if group in self.pairs else None
        strays: set[int] = set()
        for points in stretches(jumps):
            near = None if distance is None else distance[points, points]
            each = jumps[points.start : points.stop - 1]
            strays |= {points.start + i for i in off_path(each, self.steps[kept][points], near)}
        found: dict[int, Finding] = {}
        for i in strays:
            name = self.checkpoints[kept[i]].name
            usual = float(np.nanmedian(jumps))
            sides = [f"{jumps[k]:.4g}" for k in (i - 1, i) if 0 <= k < len(jumps)]
            detail = f"{' and '.join(sides)} from its neighbours, where {usual:.4g} is usual"
            found[kept[i]] = Finding(checkpoint=name, kind="off-path", detail=detail)
        return found | self._misplaced(group, wrong | set(found))

    def _misplaced(self, group: str, wrong: set[int]) -> dict[int, Finding]:
        """Checkpoints under another's step, which only all pairs tell."""
        if group not in self.pairs:
            return {}
        kept = [i for i in range(len(self.checkpoints)) if i not in wrong]
        distance = self.pairs[group].without(wrong).distance
        found: dict[int, Finding] = {}
        for i, nearest in elsewhere(distance).items():
            place, name = self.checkpoints[kept[nearest]].name, self.checkpoints[kept[i]].name
            sides = min(distance[i, i - 1], distance[i, i + 1])
            detail = (
                f"{distance[i, nearest]:.4g} from '{place}', {sides:.4g} from the nearer of its "
                "neighbours: the path jumps to another step and back"
            )
            found[kept[i]] = Finding(checkpoint=name, kind="off-path", detail=detail)
        return found

    def drowning(self, wrong: set[int]) -> set[int]:
        """Of those left out, the ones beside which the others' differences are rounding errors.

        Only all pairs suffer: their distances are sums of steps onto such a checkpoint and off it.
        """
        found: set[int] = set()
        for group in self.pairs:
            jumps = np.sqrt(self.jumps(group, range(len(self.checkpoints))))
            moved = jumps[jumps > 0]  # many checkpoints may serve the same weights
            vast = jumps > (_DROWNED * np.median(moved) if len(moved) else np.inf)
            found |= {i for i in wrong if vast[max(0, i - 1) : i + 1].any()}
        return found

    def rounded(self, group: str, kept: Sequence[int]) -> dict[int, Finding]:
        """Checkpoints so coarse that rounding, not training, moves them."""
        stored = self.neighbours(group, kept).step_norm
        without = np.sqrt(self.jumps(group, kept))
        found: dict[int, Finding] = {}
        for place, i in enumerate(kept):
            dtype = self._precision(i)
            sides = [k for k in (place - 1, place) if 0 <= k < len(stored)]
            worst = max(sides, key=lambda k: stored[k] - without[k], default=None)
            if dtype is None or worst is None or not stored[worst] > _INFLATED * without[worst]:
                continue
            name = self.checkpoints[i].name
            detail = (
                f"rounding to {dtype} makes ‖δ‖ {stored[worst]:.4g}; "
                f"without it about {without[worst]:.4g}"
            )
            found[i] = Finding(checkpoint=name, kind="low-precision", detail=detail)
        return found

    def _precision(self, i: int) -> str | None:
        """The coarse dtype that most of the weights are in, or were once in."""
        if self.sums.coarse[i]:
            return "bfloat16"
        sizes: dict[torch.dtype, int] = {}
        for info in self.checkpoints[i].tensors().values():
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.numel
        dtype = max(sizes, key=lambda each: sizes[each])
        return str(dtype).removeprefix("torch.") if dtype in DIGITS else None


def _only_step(step_norm: Float, a: int, b: int) -> int:
    """Which of the steps from a to b is all of them together; −1 if several are not 0."""
    moved = np.flatnonzero(step_norm[a:b])
    return -1 if len(moved) > 1 else a + int(moved.sum())
