"""What leads a value as c → ∞.

A *term* stands for a value v(c) of the network f(x; cθ): v(c) = c^k (a + o(1)), one degree k a
tensor. Beside the calculus of degrees, [MRGSS21] Table 1, leading coefficients make it exact: what
a sum or a saturating function leaves is computed, not bounded.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

Reason = Literal["constant", "lower degree", "saturation", "tie"]
ZERO = Fraction(0)


def also(dropped: frozenset[Reason], *reasons: Reason) -> frozenset[Reason]:
    """With further reasons; without, pyright takes a set of literals for one of any strings."""
    return dropped.union(reasons)


class NoLimitError(Exception):
    """The leading coefficients do not decide what the limit is."""

    def __init__(self, found: str, *, expected: str, do: str) -> None:
        self.found, self.expected, self.do = found, expected, do
        super().__init__(found)


def cancelled(where: str, degree: Fraction) -> NoLimitError:
    return NoLimitError(
        f"leading coefficients of degree {degree} that cancel to 0 in {where}",
        expected="a leading coefficient that is not 0, since what is left has a lower degree",
        do="change the parameters or inputs that make them cancel, or leave some unscaled",
    )


@dataclass(frozen=True, kw_only=True)
class Term:
    """v(c) = c^degree · (lead + o(1)).

    Masked entries, −∞ or about the dtype's lowest number, stay what they are at any degree.
    """

    lead: Tensor
    degree: Fraction = ZERO
    dropped: frozenset[Reason] = frozenset()
    """What the o(1) holds: nothing where empty, so that v(c) = c^degree · lead for every c > 0.

    'constant' is a number beside something that grows, as ε in a layer norm; 'saturation' is
    exponentially small; 'lower degree' is neither. 'tie' says that ``lead`` itself rests on scores
    of attention taken as tied because their leading coefficients are.
    """
    tail: "Term | None" = None
    """The sum of the dominated summands, as long as the value is only moved about: it decides
    ties of the leading coefficients."""
    followed: bool = False
    """Whether the tail holds all that is not exponentially small."""
    note: str = ""
    """What the trace should say about how the term came about."""
    margin: float | None = None
    """Of a saturated attention: the smallest relative gap from the largest score to the next."""

    @property
    def zeros_are_certain(self) -> bool:
        """Whether a zero of ``lead`` is beyond all degrees, not something of a lower one."""
        return self.dropped <= {"constant", "saturation"}

    @property
    def is_known(self) -> bool:
        """Whether lead and tail together miss only what is exponentially small."""
        return self.dropped <= {"saturation"} or (self.followed and self.tail is not None)

    @property
    def vanishes(self) -> bool:
        return not bool(self.lead.any())

    @property
    def is_nothing(self) -> bool:
        """Whether it is 0, or exponentially small, throughout: of a degree below all others."""
        return self.dropped <= {"saturation"} and self.vanishes


def term(value: Any, like: Tensor | None = None) -> Term:
    """A term as it is; numbers and ordinary tensors are data, of degree 0."""
    if isinstance(value, Term):
        return value
    if isinstance(value, Tensor):
        return Term(lead=value)
    dtype = like.dtype if like is not None and like.is_floating_point() else None
    device = like.device if like is not None else None
    return Term(lead=torch.tensor(value, dtype=dtype, device=device))


def terms(*values: Any) -> list[Term]:
    """All as terms; numbers take the dtype of the first term."""
    like = next(value.lead for value in values if isinstance(value, Term))
    return [term(value, like) for value in values]


def lowest(dtype: torch.dtype) -> float:
    """Below this a number is a mask: half precision's own minimum is as small as −65504."""
    return max(torch.finfo(dtype).min / 2, -1e30)


def masked(lead: Tensor) -> Tensor | None:
    """Where the entries are masks; None where none is."""
    if not lead.is_floating_point() or lead.numel() == 0:
        return None
    found = lead <= lowest(lead.dtype)
    return found if bool(found.any()) else None


def sign_of(x: Term, among: Tensor | None = None) -> Tensor:
    """The sign of v(c) as c → ∞: of what leads, and where that is 0 of what stands beside it.

    Signs that are not ``among`` those asked for are of the leading coefficients alone.
    """
    sign = x.lead.sign()
    undecided = sign == 0 if among is None else (sign == 0) & among
    if x.dropped <= {"saturation"} or not bool(undecided.any()):
        return sign
    return torch.where(undecided, sign_of(beside(x, undecided), undecided).to(sign.dtype), sign)


def beside(x: Term, undecided: Tensor) -> Term:
    """What stands beside the leading coefficient; refused where products have forgotten it."""
    if x.tail is None or not x.followed:
        raise NoLimitError(
            f"{int(undecided.sum())} numbers of degree {x.degree} whose leading coefficient is 0",
            expected="leading coefficients that tell their sign",
            do="change the parameters or inputs that make them cancel, or leave some unscaled",
        )
    return replace(x.tail, lead=x.tail.lead.expand(x.lead.shape))
