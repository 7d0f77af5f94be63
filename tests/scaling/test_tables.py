"""The tables that the code prints are the paper's, cell by cell, as exponents."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orderone.scaling.monomial import ONE, Monomial
from orderone.scaling.tables import language_multiplier, paper_table, printed, vision_table

EXPONENTS = [Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)]


def m(**powers: str) -> Monomial:
    return Monomial({name: Fraction(power) for name, power in powers.items()})


# Typed from [DYZ23] (1.25)–(1.33), (1.99)–(1.107), (1.108)–(1.116): variance, SGD, AdamW.
PAPER = {
    "patch": (m(C_patch="1", n_patch="-1"), m(n_patch="-1"), m(n_patch="-1", n="-1/2")),
    "word": (m(C_WE="1"), ONE, m(n="-1/2")),
    "position": (m(C_PE="1"), ONE, m(n="-1/2")),
    "Q": (m(C_Q="1", n="-1"), m(n="-1"), m(n="-3/2")),
    "K": (m(C_K="1", n="-1"), m(n="-1"), m(n="-3/2")),
    "V": (m(C_V="1", n="-1"), m(n="-1"), m(n="-3/2")),
    "U": (m(C_U="1", n="-1"), m(n="-1"), m(n="-3/2")),
    "W": (m(C_W="1", n="-1"), m(n="-1"), m(n="-3/2", M="-1/2")),
    "X": (m(C_X="1", M="-1", n="-1"), m(M="-1", n="-1"), m(M="-1", n="-3/2")),
    "head": (m(C_head="1", n="-1"), m(n="-1"), m(n="-1", n_out="-1/2")),
    "head bias": (None, ONE, m(n_out="-1/2")),
}


@pytest.mark.parametrize("s", EXPONENTS)
def test_every_cell(s: Fraction) -> None:
    """(1.34) and footnote 26 for the meta-family: n^(−s), n^s, n^(s/2)."""
    rows = paper_table(s)
    assert [row.group for row in rows] == list(PAPER)
    for row in rows:
        variance, sgd, adamw = PAPER[row.group]
        head = row.group.startswith("head")
        if row.group == "head":
            assert variance is not None
            variance = variance * m(n=str(-s))
        assert row.variance == variance
        assert row.sgd == (sgd if head else sgd * m(n=str(s)))
        assert row.adamw == (adamw if head else adamw * m(n=str(s / 2)))


@pytest.mark.parametrize("s", EXPONENTS)
def test_multiplier(s: Fraction) -> None:
    assert language_multiplier(s) == m(n=str(-(1 + s) / 2))


# Typed from §II.1: standard, s = 0, ½, 1; M dropped.
VISION = {
    "patch": [ONE, m(n_patch="-1", n="-1/2"), m(n_patch="-1", n="-1/4"), m(n_patch="-1")],
    "position": [ONE, m(n="-1/2"), m(n="-1/4"), ONE],
    **{group: [ONE, m(n="-3/2"), m(n="-5/4"), m(n="-1")] for group in "QKVUWX"},
    "head": [ONE, *[m(n="-1", n_out="-1/2")] * 3],
    "head bias": [ONE, *[m(n_out="-1/2")] * 3],
}


@pytest.mark.parametrize("group", VISION)
@pytest.mark.parametrize("column", range(4))
def test_vision_table(group: str, column: int) -> None:
    assert vision_table()[group][column] == VISION[group][column]


def test_vision_table_has_no_other_row() -> None:
    assert list(vision_table()) == list(VISION)


def test_dropping_M_leaves_variances() -> None:
    for kept, dropped in zip(paper_table(), paper_table(multiplier_in_fans=False), strict=True):
        assert kept.variance == dropped.variance
        assert (kept.adamw == dropped.adamw) == (kept.group not in ("W", "X"))


def test_printed_table_is_readable() -> None:
    lines = printed(paper_table()).splitlines()
    assert lines[0].split() == ["group", "variance", "SGD", "λ", "AdamW", "λ̃"]
    X = next(line for line in lines if line.startswith("X"))
    assert X.split("  ")[0] == "X"
    assert "C_X M^-1 n^-1" in X
    assert "M^-1 n^(-3/2)" in X
