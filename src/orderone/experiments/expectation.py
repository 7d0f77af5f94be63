"""What the theory expects each coordinate to do as the width grows, under a plan.

Under the meta-family, [DYZ23] (1.34) and footnote 26, with AdamW:

    signal at initialisation    order one, but for the output, ∝ n^(−s/2)
    its change after a step     of the output order one, of all within ∝ n^(−(1−s)/2): at s = 0
                                the network learns from changes of single weights that are each
                                too small to see, at s = 1 every signal moves by order one
    gradient |g| of a group     1/√fan_out, × n^(−s/2) for all but the head

The output's change is of order one at the words or classes that the loss asks for. At the others it
is the random W^head Δz, smaller by 1/√n: an r.m.s. over many outputs, √(n_out / n) of it random,
therefore decays until n is above n_out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from orderone.experiments.slope import Estimate, exponent
from orderone.probes.coordinates import Place
from orderone.scaling.plan import Plan
from orderone.scaling.row import Row

Quantity = Literal["size", "change"]
Verdict = Literal[
    "order one", "decays as expected", "decays", "grows", "unclear", "not finite", "does not move"
]

TOLERANCE = 0.1
"""Slopes nearer to one another than this are the same: widths are finite."""

FAILING = ("grows", "not finite")


def expected_slope(place: Place, quantity: Quantity, plans: Mapping[int, Plan]) -> float | None:
    """The theory's exponent of n; None where it has none, as under a uniform practice.

    Of a change of a gradient it is an upper bound, the gradient's own: what moves it is the output
    error, of order one, and a change of the network itself that vanishes as n^(−(1−s)/2); at a few
    hundred features neither is negligible beside the other.
    """
    plan = next(iter(plans.values()))
    if place.kind == "gradient":
        return _gradient_slope(place.where, plans)
    if plan.strategy == "standard":
        return None
    outer = place.kind == "output" or _is_head(place, plan)
    if quantity == "size":
        return -plan.s / 2 if outer and plan.s else 0.0
    return 0.0 if outer or plan.s == 1 else -(1 - plan.s) / 2


def verdict(slope: Estimate | None, expected: float | None, *, bound: bool = False) -> Verdict:
    """What a measured slope says; growth is judged against order one, never against the theory.

    With ``bound`` the theory says only that the slope is at most ``expected``.
    """
    if slope is None:
        return "does not move"
    if math.isnan(slope.value):
        return "not finite"
    if slope.value > TOLERANCE:
        # Of a hundred lines some scatter above the tolerance: all of the interval has to.
        return "grows" if slope.low > TOLERANCE else "unclear"
    if slope.value >= -TOLERANCE or (expected == 0 and slope.high >= -TOLERANCE):
        return "order one"
    if expected is None or (expected == 0 and not bound):
        return "decays"
    near = slope.low - TOLERANCE <= expected <= slope.high + TOLERANCE
    below = bound and slope.value <= expected + TOLERANCE
    return "decays as expected" if near or below else "decays"


def gradient_group(row: Row) -> str:
    """The group in which a parameter's gradient is measured: a head's bias is no other's like."""
    return f"head {row.role}" if row.head and row.role != "head" else row.role


def _is_head(place: Place, plan: Plan) -> bool:
    if place.kind != "map":
        return False
    if place.where == plan.tied_head:
        return True
    owned = [row for row in plan.rows if row.name.rpartition(".")[0] == place.where]
    return any(row.head for row in owned)


def _gradient_slope(group: str, plans: Mapping[int, Plan]) -> float | None:
    """Slope of the r.m.s. over the group's tensors of 1/√fan_out, and n^(−s/2) but for the head."""
    if any(plan.constants == "the model's own" for plan in plans.values()):
        return None
    widths, sizes = list[float](), list[float]()
    for plan in plans.values():
        rows = [row for row in plan.rows if gradient_group(row) == group]
        squares = sum(
            row.size / row.fan_out * (1 if row.head else plan.width**-plan.s) for row in rows
        )
        widths.append(plan.width)
        sizes.append(math.sqrt(squares / sum(row.size for row in rows)))
    return round(exponent(widths, sizes), 12) + 0.0
