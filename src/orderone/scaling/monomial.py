"""Products of powers of symbols: a rule is compared as exponents, not at one width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType


@dataclass(frozen=True)
class Monomial:
    """coefficient × Π symbol^exponent, with exact rational exponents."""

    exponents: Mapping[str, Fraction] = field(default_factory=dict[str, Fraction])
    coefficient: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        kept = {name: power for name, power in sorted(self.exponents.items()) if power}
        object.__setattr__(self, "exponents", MappingProxyType(kept))

    def __hash__(self) -> int:
        return hash((tuple(self.exponents.items()), self.coefficient))

    def __mul__(self, other: Monomial | float) -> Monomial:
        other = _monomial(other)
        names = {*self.exponents, *other.exponents}
        summed = {n: self.exponents.get(n, 0) + other.exponents.get(n, Fraction()) for n in names}
        powers = {name: Fraction(power) for name, power in summed.items()}
        return Monomial(powers, self.coefficient * other.coefficient)

    __rmul__ = __mul__

    def __pow__(self, power: Fraction | float) -> Monomial:
        power = Fraction(power)
        if self.coefficient != 1 and power.denominator != 1:
            raise ValueError(f"{self} to the power {power} has no rational coefficient")
        powers = {name: exponent * power for name, exponent in self.exponents.items()}
        return Monomial(powers, self.coefficient ** int(power) if power else Fraction(1))

    def __truediv__(self, other: Monomial | float) -> Monomial:
        return self * _monomial(other) ** -1

    def __rtruediv__(self, other: Monomial | float) -> Monomial:
        return _monomial(other) / self

    def at(self, values: Mapping[str, float]) -> float:
        """The number that the product is at given values of its symbols."""
        factors = (values[name] ** float(power) for name, power in self.exponents.items())
        return float(self.coefficient) * math.prod(factors)

    def __str__(self) -> str:
        factors = [_power(name, exponent) for name, exponent in self.exponents.items()]
        if self.coefficient != 1 or not factors:
            factors.insert(0, str(self.coefficient))
        return " ".join(factors)


def symbol(name: str) -> Monomial:
    """The monomial that is one symbol."""
    return Monomial({name: Fraction(1)})


ONE = Monomial()


def _monomial(value: Monomial | float) -> Monomial:
    return value if isinstance(value, Monomial) else Monomial(coefficient=Fraction(value))


def _power(name: str, exponent: Fraction) -> str:
    if exponent == 1:
        return name
    return f"{name}^({exponent})" if exponent.denominator > 1 else f"{name}^{exponent}"
