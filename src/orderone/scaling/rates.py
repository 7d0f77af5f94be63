"""What the rule says of one placed parameter: variance at C = 1, and both factors."""

from __future__ import annotations

from dataclasses import dataclass

from orderone.scaling.roles import Placement
from orderone.scaling.rule import adamw_factor, initial_variance, sgd_factor
from orderone.scaling.simplified import without_M


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rule's three numbers."""

    variance: float
    """At C = 1."""
    adamw: float
    sgd: float

    def over(self, base: Rates) -> Rates:
        """The same relative to another width's."""
        return Rates(
            variance=self.variance / base.variance,
            adamw=self.adamw / base.adamw,
            sgd=self.sgd / base.sgd,
        )


def rates_of(placement: Placement, *, n: int, s: float, multiplier_in_fans: bool) -> Rates:
    """Of a parameter in a model of width n."""
    fans = placement.fans()
    learning = fans if multiplier_in_fans else without_M(placement.role.group, fans)
    # The rule is about scale · tensor; a gradient of the tensor has the scale in it, and AdamW
    # divides it out again.
    scale = placement.role.scale
    return Rates(
        variance=initial_variance(fans, 1.0, n=float(n), s=s) / scale**2,
        adamw=adamw_factor(learning, n=float(n), s=s) / scale,
        sgd=sgd_factor(learning, n=float(n), s=s) / scale**2,
    )
