"""The one rule of scaling, [DYZ23] eqs. (1.25)–(1.34), (1.99)–(1.116) and footnote 26.

For a parameter tensor know its fan-in, its fan-out, whether it is a *lookup* (embedding, position,
bias, gain: applied without a sum over fan-in) and whether it belongs to the *head*. Everything else
follows, for the paper's parameters and for those that it leaves out: biases, gains, gated MLPs,
grouped-query attention, convolutions, packed q-k-v.

Every function takes numbers or ``Monomial`` symbols: the code that scales a model is the code whose
exponents are compared with the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from orderone.scaling.monomial import Monomial

Size = TypeVar("Size", float, Monomial)
"""A width as a number, or as a symbol."""


@dataclass(frozen=True, kw_only=True)
class Fans(Generic[Size]):
    """What the rule knows of a parameter tensor."""

    fan_in: Size
    fan_out: Size
    lookup: bool = False
    head: bool = False


def initial_variance(tensor: Fans[Size], C: Any, *, n: Size, s: float | Fraction) -> Size:
    """C / fan_in, for a lookup C; × n^(−s) for the head, [DYZ23] (1.25)–(1.34)."""
    variance = C * _sum(tensor)
    return variance * n ** Fraction(-s) if tensor.head else variance


def sgd_factor(tensor: Fans[Size], *, n: Size, s: float | Fraction) -> Size:
    """λ: 1 / fan_in, for a lookup 1; × n^s for all but the head.

    [DYZ23] eqs. (1.99)–(1.107), footnote 26.
    """
    factor = _sum(tensor)
    return factor if tensor.head else factor * n ** Fraction(s)


def adamw_factor(tensor: Fans[Size], *, n: Size, s: float | Fraction) -> Size:
    """λ̃: SGD's factor at s = 0, / √fan_out; × n^(s/2) for all but the head.

    [DYZ23] eqs. (1.108)–(1.116), footnote 26. 1/√fan_out is the size |g| of one
    component of the gradient, which AdamW divides out.
    """
    factor = sgd_factor(tensor, n=n, s=0) * tensor.fan_out ** Fraction(-1, 2)
    return factor if tensor.head else factor * n ** (Fraction(s) / 2)


def output_multiplier(*, n: Size, s: float | Fraction) -> Size:
    """N_rescale = n^(−(1+s)/2) of a tied language head, [DYZ23] (1.34).

    The tied matrix has a lookup's variance and factors; the multiplier gives the head its own.
    """
    return n ** (-(1 + Fraction(s)) / 2)


def _sum(tensor: Fans[Size]) -> Size:
    """1 / fan_in of a map that sums over its inputs, 1 of a lookup."""
    return tensor.fan_in ** (0 if tensor.lookup else -1)
