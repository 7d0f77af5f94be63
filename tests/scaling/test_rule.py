"""The one rule gives every cell of the papers' tables, as exponents."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orderone.scaling.monomial import ONE, Monomial, symbol
from orderone.scaling.rule import (
    Fans,
    adamw_factor,
    initial_variance,
    output_multiplier,
    sgd_factor,
)

n, M, n_patch, n_out, s = (symbol(name) for name in ("n", "M", "n_patch", "n_out", "s"))

GROUPS = {
    "patch": Fans(fan_in=n_patch, fan_out=n),
    "word": Fans(fan_in=ONE, fan_out=n, lookup=True),
    "position": Fans(fan_in=ONE, fan_out=n, lookup=True),
    "Q": Fans(fan_in=n, fan_out=n),
    "K": Fans(fan_in=n, fan_out=n),
    "V": Fans(fan_in=n, fan_out=n),
    "U": Fans(fan_in=n, fan_out=n),
    "W": Fans(fan_in=n, fan_out=M * n),
    "X": Fans(fan_in=M * n, fan_out=n),
    "head": Fans(fan_in=n, fan_out=n_out, head=True),
    "head bias": Fans(fan_in=ONE, fan_out=n_out, lookup=True, head=True),
}


def monomial(**powers: str) -> Monomial:
    return Monomial({name: Fraction(power) for name, power in powers.items()})


# Typed from the paper's tables, in the paper's order; not derived.
VARIANCE_OVER_C = {
    "patch": monomial(n_patch="-1"),
    "word": ONE,
    "position": ONE,
    **{name: monomial(n="-1") for name in "QKVUW"},
    "X": monomial(M="-1", n="-1"),
}
SGD = {
    "patch": monomial(n_patch="-1"),
    "word": ONE,
    "position": ONE,
    **{name: monomial(n="-1") for name in "QKVUW"},
    "X": monomial(M="-1", n="-1"),
    "head": monomial(n="-1"),
    "head bias": ONE,
}
ADAMW = {
    "patch": monomial(n_patch="-1", n="-1/2"),
    "word": monomial(n="-1/2"),
    "position": monomial(n="-1/2"),
    **{name: monomial(n="-3/2") for name in "QKVU"},
    "W": monomial(n="-3/2", M="-1/2"),
    "X": monomial(M="-1", n="-3/2"),
    "head": monomial(n="-1", n_out="-1/2"),
    "head bias": monomial(n_out="-1/2"),
}
EXPONENTS = [Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)]


@pytest.mark.parametrize("s", EXPONENTS)
@pytest.mark.parametrize("group", VARIANCE_OVER_C)
def test_variance_is_the_papers(group: str, s: Fraction) -> None:
    """(1.25)–(1.33): no group but the head depends on s."""
    assert initial_variance(GROUPS[group], 1, n=n, s=s) == VARIANCE_OVER_C[group]


@pytest.mark.parametrize("s", EXPONENTS)
def test_head_variance_and_rescaling(s: Fraction) -> None:
    """(1.34): C_head / n^(1+s), and N_rescale = n^(−(1+s)/2)."""
    assert initial_variance(GROUPS["head"], 1, n=n, s=s) == n ** -(1 + s)
    assert output_multiplier(n=n, s=s) == n ** (-(1 + s) / 2)


@pytest.mark.parametrize("s", EXPONENTS)
@pytest.mark.parametrize("group", SGD)
def test_sgd_factor_is_the_papers(group: str, s: Fraction) -> None:
    """(1.99)–(1.107), and footnote 26: n^s on all but the head."""
    meta = ONE if group.startswith("head") else n**s
    assert sgd_factor(GROUPS[group], n=n, s=s) == SGD[group] * meta


@pytest.mark.parametrize("s", EXPONENTS)
@pytest.mark.parametrize("group", ADAMW)
def test_adamw_factor_is_the_papers(group: str, s: Fraction) -> None:
    """(1.108)–(1.116), and footnote 26: n^(s/2) on all but the head."""
    meta = ONE if group.startswith("head") else n ** (s / 2)
    assert adamw_factor(GROUPS[group], n=n, s=s) == ADAMW[group] * meta


VISION_TABLE = {  # §II.1: the paper's AdamW factors at s = 0, ½, 1, where M is dropped from W and X
    "patch": ("-1/2", "-1/4", "0"),
    "position": ("-1/2", "-1/4", "0"),
    "Q": ("-3/2", "-5/4", "-1"),
    "W": ("-3/2", "-5/4", "-1"),
    "X": ("-3/2", "-5/4", "-1"),
    "head": ("-1", "-1", "-1"),
    "head bias": ("0", "0", "0"),
}


@pytest.mark.parametrize("group", VISION_TABLE)
@pytest.mark.parametrize(
    ("column", "s"), list(enumerate([Fraction(0), Fraction(1, 2), Fraction(1)]))
)
def test_vision_table(group: str, column: int, s: Fraction) -> None:
    dropped = adamw_factor(GROUPS[group], n=n, s=s).exponents
    assert dropped.get("n", 0) == Fraction(VISION_TABLE[group][column])


@pytest.mark.parametrize("s", [0, 0.3, 0.5, 1])
@pytest.mark.parametrize("group", ADAMW)
def test_numbers_and_symbols_agree(group: str, s: float) -> None:
    """The same functions at a width, with floats, are the monomials' values at it."""
    at = {"n": 96.0, "M": 4.0, "n_patch": 48.0, "n_out": 10.0}
    symbols = GROUPS[group]
    numbers = Fans(
        fan_in=symbols.fan_in.at(at),
        fan_out=symbols.fan_out.at(at),
        lookup=symbols.lookup,
        head=symbols.head,
    )
    for rule in (sgd_factor, adamw_factor):
        assert rule(numbers, n=at["n"], s=s) == pytest.approx(rule(symbols, n=n, s=s).at(at))
    value = initial_variance(numbers, 0.5, n=at["n"], s=s)
    assert value == pytest.approx(initial_variance(symbols, 0.5, n=n, s=s).at(at))
