"""Checkpoints that do not belong: weights that equal another's, and points far off the path."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from orderone.trajectory.checkpoint import Checkpoint
from orderone.trajectory.findings import Finding, UnreadableError
from orderone.trajectory.one_pass import walk
from orderone.trajectory.opened import same_files

Float = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_NEAR = 1e-9  # squared distance over squared norm below which weights may be equal
_BRIDGE = 1.5  # jumps onto a point and off it, over the distance that passes it by
_USUAL = 2.0  # and over the median step around
_ALONE = 3.0  # the same where no distance past the point is known
_END = 4.0  # the first or last step over its neighbour's, at the same number of steps
_LONGEST = 8  # points that may be off the path together
_NEARER = 1.25  # the nearer neighbour's distance over that of a checkpoint elsewhere
_DETOUR = 1.6  # the way over a point and past it: √2 for a random walk
_IN_ORDER = 0.75  # of pairs of points; half of them by chance
_CHUNK = 1 << 21


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two checkpoints hold the same weights; reads no further than the first difference."""
    if same_files(a, b):
        return True
    try:
        return all(
            torch.equal(
                x.float() if x.dtype != y.dtype else x, y.float() if x.dtype != y.dtype else y
            )
            for _, (x, y) in walk([a, b], _CHUNK)
        )
    except UnreadableError:
        return False


def duplicates(
    checkpoints: Sequence[Checkpoint], near: Bools, misfit: Callable[[int, set[int]], float]
) -> dict[int, Finding]:
    """Of checkpoints with equal weights all but one: that which ``misfit`` leaves on the path.

    ``near`` marks the pairs worth comparing; ``misfit`` tells how ill a point fits between others.
    Where the series ends with several of them, all fit alike and the last is kept: it is the final
    weights that other names serve too.
    """
    found: dict[int, Finding] = {}
    for group in _equal_groups(checkpoints, near):
        others = set(group)
        tail = {i for i in group if set(range(i, len(checkpoints))) <= others}
        kept = min(group, key=lambda i: (round(misfit(i, others), 3), -i if i in tail else i))
        for i in group:
            if i != kept:
                name = checkpoints[i].name
                detail = f"its weights equal those of '{checkpoints[kept].name}'"
                found[i] = Finding(checkpoint=name, kind="duplicate", detail=detail)
    return found


def near_pairs(distance_squared: Float, square: Float) -> Bools:
    """Pairs so close that they may be equal."""
    scale = np.maximum(square[:, None], square[None])
    return np.triu(distance_squared <= _NEAR * scale, 1)


def near_norms(norm: Float, step_norm: Float) -> Bools:
    """The same without distances: norms that agree to rounding, steps of nothing."""
    close = np.abs(norm[:, None] - norm[None]) <= 1e-7 * norm[None]
    for i, step in enumerate(step_norm):
        close[i, i + 1] = close[i + 1, i] = step**2 <= _NEAR * norm[i] ** 2
    return np.triu(close, 1)


def over_one_step(step_norm: Float) -> Float:
    """Squared distances of points that at most one step of any length lies between; else NaN."""
    count = len(step_norm) + 1
    found = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(i, count):
            between = step_norm[i:j]
            if np.isnan(between).any() or np.count_nonzero(between) > 1:
                break
            found[i, j] = found[j, i] = np.sum(between**2)
    return found


def _equal_groups(checkpoints: Sequence[Checkpoint], near: Bools) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in range(len(checkpoints)):
        home = next(
            (g for g in groups if near[g[0], i] and equal(checkpoints[g[0]], checkpoints[i])), None
        )
        if home is None:
            groups.append([i])
        else:
            home.append(i)
    return [group for group in groups if len(group) > 1]


def misfit(distance_squared: Float, steps: Float, i: int, others: set[int]) -> float:
    """Squared distance of point i from where its neighbours, ``others`` apart, would put it.

    The point at part f between a and b: (1 − f)‖i − a‖² + f‖i − b‖² − f(1 − f)‖a − b‖². Distances
    that are not known are NaN; without ‖a − b‖ the last term is left out.
    """
    known = np.isfinite(distance_squared[i])
    before = [j for j in range(i) if j not in others and known[j]]
    after = [j for j in range(i + 1, len(steps)) if j not in others and known[j]]
    if not before or not after:
        ends = before[-1:] + after[:1]
        return float(distance_squared[i, ends[0]]) if ends else 0.0
    a, b = before[-1], after[0]
    f = (steps[i] - steps[a]) / (steps[b] - steps[a])
    d = distance_squared
    apart = d[a, b] if np.isfinite(d[a, b]) else 0.0
    return float((1 - f) * d[i, a] + f * d[i, b] - f * (1 - f) * apart)


def stretches(jumps: Float) -> list[slice]:
    """Points in a row between which every step is known."""
    cuts = [-1, *np.flatnonzero(np.isnan(jumps)), len(jumps)]
    return [slice(int(a) + 1, int(b) + 1) for a, b in pairwise(cuts)]


def off_path(jumps: Float, steps: Float, distance: Float | None) -> set[int]:
    """Points, alone or up to eight together, that the path jumps onto and off again.

    ``jumps`` are the steps' lengths without rounding. A jump counts as one when it is long beside
    the distance that passes the points by, and beside the steps around.
    """
    count = len(steps)
    found: set[int] = set()
    for length in range(1, min(_LONGEST, (count - 2) // 2) + 1) if count > 2 else ():
        for first in range(1, count - length):
            run = set(range(first, first + length))
            if not run & found and _jumped(jumps, distance, first, first + length - 1):
                found |= run
    return found | _ends(jumps, steps, found)


def elsewhere(distance: Float) -> dict[int, int]:
    """Points that lie at another place of the path, and which point they are nearest to there.

    The way over the point is a detour (a path that turns back upon itself passes near itself too,
    without one), neither neighbour is as near, and the point belongs where it is near: it is no
    further from there than the neighbours there, and the path leads away from it to both sides.
    Noise about a resting point, whether even, in cycles or falling, has no such place.
    """
    found: dict[int, int] = {}
    for i in range(1, len(distance) - 1):
        others = distance[i].copy()
        others[i - 1 : i + 2] = np.inf
        nearest = int(np.argmin(others))
        apart = _NEARER * others[nearest] < _to_neighbours(distance, i)
        detour = distance[i, i - 1] + distance[i, i + 1] > _DETOUR * distance[i - 1, i + 1]
        home = others[nearest] < _NEARER * _to_neighbours(distance, nearest)
        if apart and detour and home and _leading_away(distance, i, nearest):
            found[i] = nearest
    return found


def _to_neighbours(distance: Float, i: int) -> float:
    """To the nearer of the two."""
    return min(float(distance[i, j]) for j in (i - 1, i + 1) if 0 <= j < len(distance))


def _leading_away(distance: Float, i: int, place: int) -> bool:
    """Whether of most pairs of points on one side of ``place`` the one further on is further."""
    row, place = np.delete(distance[i], i), place - (place > i)
    in_order = pairs = 0
    for side in (row[place::-1], row[place:]):
        further = side[None, :] > side[:, None]
        in_order += int(np.count_nonzero(np.triu(further, 1)))
        pairs += len(side) * (len(side) - 1) // 2
    return in_order > _IN_ORDER * pairs


def _jumped(jumps: Float, distance: Float | None, first: int, last: int) -> bool:
    least = float(min(jumps[first - 1], jumps[last]))
    inside = [jumps[k] for k in range(first, last)]
    around = [jumps[k] for k in range(max(0, first - 5), first - 1)]
    around += [jumps[k] for k in range(last + 1, min(len(jumps), last + 5))]
    usual = float(np.median(around)) if around else 0.0
    if distance is None:
        return last == first and usual > 0 and least > _ALONE * usual
    if inside and least < _USUAL * max(inside):
        return False
    passing_by = float(distance[first - 1, last + 1])
    return least > _BRIDGE * passing_by and least > _USUAL * usual


def _ends(jumps: Float, steps: Float, found: set[int]) -> set[int]:
    """The last point, or the first, when the step to it is far longer than the next to it.

    Early steps are longer by nature, so the first must stand out twice as far.
    """
    count = len(steps)
    if count < 4:
        return set()
    gaps = np.diff(steps)
    ends: set[int] = set()
    last = jumps[-1] / max(jumps[-2] * max(1.0, gaps[-1] / gaps[-2]), 1e-300)
    if last > _END and not {count - 2, count - 3} & found:
        ends.add(count - 1)
    first = jumps[0] / max(jumps[1] * max(1.0, gaps[0] / gaps[1]), 1e-300)
    if first > 2 * _END and not {1, 2} & found:
        ends.add(0)
    return ends
