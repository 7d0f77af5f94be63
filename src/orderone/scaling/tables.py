"""The tables of [DYZ23] printed from the rule: as symbols, at no width."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from orderone.scaling.monomial import ONE, Monomial, symbol
from orderone.scaling.rule import (
    Fans,
    adamw_factor,
    initial_variance,
    output_multiplier,
    sgd_factor,
)
from orderone.scaling.simplified import without_M
from orderone.scaling.table import aligned

n, M, n_patch, n_out = (symbol(name) for name in ("n", "M", "n_patch", "n_out"))

PAPER: dict[str, Fans[Monomial]] = {
    "patch": Fans(fan_in=n_patch, fan_out=n),
    "word": Fans(fan_in=ONE, fan_out=n, lookup=True),
    "position": Fans(fan_in=ONE, fan_out=n, lookup=True),
    **{letter: Fans(fan_in=n, fan_out=n) for letter in "QKVU"},
    "W": Fans(fan_in=n, fan_out=M * n),
    "X": Fans(fan_in=M * n, fan_out=n),
    "head": Fans(fan_in=n, fan_out=n_out, head=True),
    "head bias": Fans(fan_in=ONE, fan_out=n_out, lookup=True, head=True),
}
"""The paper's parameters in its order."""

_C = {"word": "C_WE", "position": "C_PE"}
_VISION = ("patch", "position", "Q", "K", "V", "U", "W", "X", "head", "head bias")


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A group's line in [DYZ23] (1.25)–(1.34), (1.99)–(1.116)."""

    group: str
    variance: Monomial | None
    """None: starts at zero."""
    sgd: Monomial
    adamw: Monomial


def paper_table(
    s: Fraction | float = 0, *, multiplier_in_fans: bool = True
) -> tuple[PaperRow, ...]:
    """Variances and learning-rate factors of the paper's groups at that meta-exponent."""
    return tuple(
        _row(group, fans, Fraction(s), multiplier_in_fans=multiplier_in_fans)
        for group, fans in PAPER.items()
    )


def vision_table() -> dict[str, tuple[Monomial, ...]]:
    """AdamW factors of §II.1's runs: standard, s = 0, ½, 1, with M dropped."""
    columns = [
        {row.group: row.adamw for row in paper_table(s, multiplier_in_fans=False)}
        for s in (Fraction(0), Fraction(1, 2), Fraction(1))
    ]
    return {group: (ONE, *(column[group] for column in columns)) for group in _VISION}


def language_multiplier(s: Fraction | float = 0) -> Monomial:
    """N_rescale, (1.34)."""
    return output_multiplier(n=n, s=Fraction(s))


def printed(table: tuple[PaperRow, ...]) -> str:
    """The table as lines of text."""
    cells = [("group", "variance", "SGD λ", "AdamW λ̃")] + [
        (
            row.group,
            "0" if row.variance is None else str(row.variance),
            str(row.sgd),
            str(row.adamw),
        )
        for row in table
    ]
    return "\n".join(aligned(cells))


def _row(group: str, fans: Fans[Monomial], s: Fraction, *, multiplier_in_fans: bool) -> PaperRow:
    learning = fans if multiplier_in_fans else without_M(group, fans)
    constant = symbol(_C.get(group, f"C_{group}"))
    zero = group == "head bias"
    return PaperRow(
        group=group,
        variance=None if zero else initial_variance(fans, constant, n=n, s=s),
        sgd=sgd_factor(learning, n=n, s=s),
        adamw=adamw_factor(learning, n=n, s=s),
    )
