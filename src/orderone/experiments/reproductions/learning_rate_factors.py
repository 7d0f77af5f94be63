"""One rule of four facts about a tensor gives every learning-rate factor of the paper.

Source   [DYZ23] §I.3, eqs. (1.25)–(1.34), (1.99)–(1.116), footnote 26; the vision table of §II.1
Expect   every cell equal, as exponents
Cost     a second at any scale
Differs  nothing: symbols have no width
"""

from __future__ import annotations

from fractions import Fraction

from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.report.page import Section
from orderone.scaling.monomial import ONE, Monomial
from orderone.scaling.tables import paper_table, vision_table

PUBLISHED = "tables (1.99)–(1.107) for SGD, (1.108)–(1.116) for AdamW, and the vision table"


def _power(**powers: str) -> Monomial:
    return Monomial({name: Fraction(power) for name, power in powers.items()})


# Typed from the paper, as it prints them.
_MAP = {"n": "-1"}
SGD: dict[str, Monomial] = {
    "patch": _power(n_patch="-1"),
    "word": ONE,
    "position": ONE,
    **{letter: _power(**_MAP) for letter in "QKVUW"},
    "X": _power(M="-1", n="-1"),
    "head": _power(**_MAP),
    "head bias": ONE,
}
ADAMW: dict[str, Monomial] = {
    "patch": _power(n_patch="-1", n="-1/2"),
    "word": _power(n="-1/2"),
    "position": _power(n="-1/2"),
    **{letter: _power(n="-3/2") for letter in "QKVU"},
    "W": _power(n="-3/2", M="-1/2"),
    "X": _power(M="-1", n="-3/2"),
    "head": _power(n="-1", n_out="-1/2"),
    "head bias": _power(n_out="-1/2"),
}
_STEM = ("-1/2", "-1/4", "0")
VISION: dict[str, tuple[str, str, str]] = {
    "patch": _STEM,
    "position": _STEM,
    **dict.fromkeys("QKVUWX", ("-3/2", "-5/4", "-1")),
    "head": ("-1", "-1", "-1"),
    "head bias": ("0", "0", "0"),
}
"""Exponents of n at s = 0, ½, 1, where the paper's runs drop M."""


def reproduce(stage: Stage) -> Outcome:
    """Compare cell by cell and print the table."""
    table = {row.group: row for row in paper_table(0)}
    differing = [f"SGD {group}" for group, cell in SGD.items() if table[group].sgd != cell]
    differing += [f"AdamW {group}" for group, cell in ADAMW.items() if table[group].adamw != cell]
    vision = vision_table()
    for group, published in VISION.items():
        ours = [str(cell.exponents.get("n", Fraction(0))) for cell in vision[group][1:]]
        differing += [f"vision {group}"] if ours != list(published) else []
    cells = len(SGD) + len(ADAMW) + 3 * len(VISION)
    stage.record("cells", cells)
    stage.record("cells that differ", len(differing))
    rows = [(row.group, str(row.sgd), str(row.adamw)) for row in table.values()]
    return Outcome(
        measured=f"{cells - len(differing)} of {cells} cells equal as exponents",
        held=not differing,
        why=f"These differ: {', '.join(differing)}." if differing else "",
        sections=[
            Section(
                heading="Factors at s = 0, from the rule",
                columns=("group", "SGD λ", "AdamW λ̃"),
                rows=rows,
            )
        ],
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("symbols only")
