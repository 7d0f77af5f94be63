"""A search on the plane's grid of points: walk to the least, then check its six neighbours.

[DYZ23] §II.1: an optimum of (lr, wd) on a log2 grid counts when (2, 1), (1, 2), (2, ½), (½, 2),
(1, ½) and (½, 1) times it are worse. Only the order of losses matters, so that any increasing
function of the loss is searched along the same points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[int, int]
"""(i, j): the point (2^i lr, 2^j wd) of a search that starts at (lr, wd)."""

Losses = Mapping[Point, float]
"""Of the points that were tried; what is not finite counts as the worst, and alike."""

Evaluate = Callable[[Sequence[Point]], Iterable[tuple[Point, float]]]

Named = tuple[str, Point]
"""A point of one of several searches."""

NEIGHBOURS: tuple[Point, ...] = ((1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0))
"""The paper's six, as powers of 2 in (lr, wd)."""

Verdict = Literal["optimum", "tie", "budget", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a search ended."""

    verdict: Verdict
    """optimum: six neighbours are worse; tie: some are as good; budget: not all were tried."""
    best: Point
    losses: dict[Point, float]
    """Of every point tried, in the order of trying."""


def search(evaluate: Evaluate, *, start: Point = (0, 0), trials: int, at_once: int = 1) -> Found:
    """Tries at most ``trials`` points, none twice, ``at_once`` of them in a call."""

    def unnamed(wanted: Sequence[Named]) -> Iterator[tuple[Named, float]]:
        for point, loss in evaluate([point for _, point in wanted]):
            yield ("", point), loss

    return search_all(unnamed, {"": start}, trials=trials, at_once=at_once)[""]


def search_all(
    evaluate: Callable[[Sequence[Named]], Iterable[tuple[Named, float]]],
    starts: Mapping[str, Point],
    *,
    trials: int,
    at_once: int = 1,
) -> dict[str, Found]:
    """Searches side by side: a call tries the next points of all that are still under way.

    Each is the search that it would be alone, of at most ``trials`` points, ``at_once`` a call.
    """
    tried: dict[str, dict[Point, float]] = {name: {} for name in starts}

    def next_of(name: str) -> list[Named]:
        room = min(at_once, trials - len(tried[name]))
        wanted = next_points(tried[name], start=starts[name]) if room else []
        return [(name, point) for point in wanted[:room]]

    while wanted := [each for name in starts for each in next_of(name)]:
        losses = {each: ranked(loss) for each, loss in evaluate(wanted)}
        # In the order of asking: which trial ended first must not matter.
        for name, point in wanted:
            tried[name][point] = losses[name, point]
    return {name: _found(tried[name], start) for name, start in starts.items()}


def _found(tried: dict[Point, float], start: Point) -> Found:
    best = least(tried, start)[0]
    return Found(verdict=verdict(tried, start=start), best=best, losses=tried)


def next_points(tried: Losses, *, start: Point = (0, 0)) -> list[Point]:
    """What is still to be tried around the best point so far, the most promising first.

    Points that are as good as the best are looked around too, the nearest to the start first. The
    list is empty when none of their neighbours is left.
    """
    if not tried:
        return [start]
    best = least(tried, start)
    if not math.isfinite(tried[best[0]]):
        return _out_of_divergence(best, tried)
    wanted: dict[Point, None] = {}
    for point in best:
        wanted |= dict.fromkeys(_promising(point, tried))
    return list(wanted)


def verdict(tried: Losses, *, start: Point = (0, 0)) -> Verdict:
    """What the points tried so far say."""
    best = least(tried, start)
    if not math.isfinite(tried[best[0]]):
        return "diverged"
    if next_points(tried, start=start):
        return "budget"
    alone = all(tried[near] > tried[best[0]] for near in neighbours(best[0]))
    return "optimum" if alone else "tie"


def neighbours(point: Point) -> list[Point]:
    """The six around it."""
    return [(point[0] + i, point[1] + j) for i, j in NEIGHBOURS]


def least(tried: Losses, start: Point) -> list[Point]:
    """The best point, and after it those that are as good and joined to it by such."""
    lowest = min(tried.values())
    equal = sorted((p for p, loss in tried.items() if loss == lowest), key=_nearness(start))
    joined = equal[:1]
    for point in joined:  # grows while it is read
        joined += [near for near in equal if near in neighbours(point) and near not in joined]
    return joined


def ranked(loss: float) -> float:
    """A loss that can be compared: NaN and −∞ are as bad as it gets."""
    return loss if math.isfinite(loss) else math.inf


def _promising(point: Point, tried: Losses) -> list[Point]:
    """Its untried neighbours: first those away from the worst that was seen on the other side."""
    untried = [near for near in neighbours(point) if near not in tried]

    def behind(near: Point) -> float:
        opposite = (2 * point[0] - near[0], 2 * point[1] - near[1])
        return -tried.get(opposite, -math.inf)

    return sorted(untried, key=behind)


def _out_of_divergence(diverged: list[Point], tried: Losses) -> list[Point]:
    """Down in lr·wd and lr: nothing is known but that these are too large."""
    around = {near: None for point in diverged for near in neighbours(point) if near not in tried}
    return sorted(around, key=lambda point: (point[0], abs(point[1]), point[1]))


def _nearness(start: Point) -> Callable[[Point], tuple[int, Point]]:
    """Steps of the six that lead there from the start; ties by the point itself."""

    def key(point: Point) -> tuple[int, Point]:
        i, j = point[0] - start[0], point[1] - start[1]
        # A step (1, −1) spends one unit of both.
        return max(abs(i), abs(j), abs(i + j)), point

    return key
