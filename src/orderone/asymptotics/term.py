"""What leads a value as c → ∞, and the algebra of leading terms.

A *term* stands for a value v(c) of the network f(x; cθ): v(c) = c^k (a + o(1)), one degree k a
tensor. The calculus of degrees is [MRGSS21] Table 1: degrees add in a product, the larger wins a
sum. Leading coefficients make it exact: what a sum or a saturating function leaves is computed,
not bounded.
"""

from collections.abc import Callable, Sequence
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


def plus(x: Term, y: Term) -> Term:
    """x + y: the larger degree wins, equal degrees add, [MRGSS21] Table 1."""
    if x.degree == y.degree:
        return _tie(x, y)
    larger, smaller = (x, y) if x.degree > y.degree else (y, x)
    shape = torch.broadcast_shapes(x.lead.shape, y.lead.shape)
    dtype = torch.result_type(x.lead, y.lead)
    if larger.vanishes:
        if larger.zeros_are_certain:
            return _beside_nothing(smaller, larger, shape, dtype)
        raise cancelled(f"a sum with a value of degree {smaller.degree}", larger.degree)
    if smaller.vanishes and smaller.zeros_are_certain:
        return _beside_nothing(larger, smaller, shape, dtype)
    return _dominated(larger, smaller, shape, dtype)


def _beside_nothing(x: Term, zero: Term, shape: torch.Size, dtype: torch.dtype) -> Term:
    """x + 0, which is exact if the 0 is."""
    return replace(_spread(x, shape, dtype), dropped=x.dropped | zero.dropped)


def minus(x: Term, y: Term) -> Term:
    return plus(x, scaled(y, -1))


def scaled(x: Term, factor: float) -> Term:
    """A number times x."""
    if factor == 1:
        return x
    lead = x.lead * factor
    if (hidden := masked(x.lead)) is not None and factor > 0:
        lead = torch.where(hidden, x.lead, lead)
    tail = scaled(x.tail, factor) if x.tail is not None else None
    return replace(x, lead=lead, tail=tail, note="", margin=None)


def times(x: Term, y: Term, product: Callable[..., Tensor]) -> Term:
    """Any product linear in both factors: degrees add, [MRGSS21] Table 1."""
    lead = product(x.lead, y.lead)
    if not bool(torch.isfinite(lead).all()):
        lead = _beside_infinite(lead, x, y, product)
    _require_above_masks(lead, x, y)
    dropped = x.dropped | y.dropped
    for each in (x, y):
        if each.is_nothing:  # 0 times anything is 0, whatever else the other is made of
            dropped = each.dropped
    return Term(
        lead=lead,
        degree=x.degree + y.degree,
        dropped=dropped,
        tail=_product_tail(x, y, product),
        followed=x.is_known and y.is_known,
    )


def _require_above_masks(lead: Tensor, x: Term, y: Term) -> None:
    """A product of numbers is no mask, however low."""
    if masked(lead) is None or masked(x.lead) is not None or masked(y.lead) is not None:
        return
    raise NoLimitError(
        f"leading coefficients as low as {float(lead.min()):.1e}, which cannot be told from masks",
        expected=f"numbers above {lowest(lead.dtype):.1e}",
        do="take smaller parameters: the direction of the limit is the same",
    )


def _beside_infinite(lead: Tensor, x: Term, y: Term, product: Callable[..., Tensor]) -> Tensor:
    """The product where a factor is 1/(0 + ε), written ∞: 0 beside a certain 0, else refused."""
    infinite = x.lead.isposinf().any() or y.lead.isposinf().any()
    if not bool(infinite):
        return lead
    if product is torch.mul:
        for one, other in ((x, y), (y, x)):
            if one.zeros_are_certain:
                lead = torch.where((one.lead == 0) & other.lead.isposinf(), 0.0, lead)
    if not bool((lead.isnan() | lead.isinf()).any()):
        return lead
    raise NoLimitError(
        "a division by numbers whose leading coefficient is 0, beside a constant",
        expected="divisors that do not vanish, or a numerator that vanishes with them",
        do="take inputs without constant rows, or leave some parameters unscaled",
    )


def power(x: Term, exponent: float) -> Term:
    """x^p, of degree pk."""
    if exponent < 0:
        return reciprocal(power(x, -exponent))
    return Term(
        lead=x.lead.pow(exponent),
        degree=x.degree * Fraction(exponent).limit_denominator(1000),
        dropped=x.dropped,
    )


def reciprocal(x: Term) -> Term:
    """1/x. Where x is 0 for certain but for an ε, ∞: of 1/ε no multiple of c^−k is enough."""
    zero = x.lead == 0
    if not bool(zero.any()):
        return Term(lead=x.lead.reciprocal(), degree=-x.degree, dropped=x.dropped)
    if "constant" not in x.dropped or not x.zeros_are_certain:
        raise NoLimitError(
            f"a division by {int(zero.sum())} numbers whose leading coefficient is 0",
            expected="divisors that do not vanish",
            do="take inputs without constant rows, or leave some parameters unscaled",
        )
    lead = torch.where(zero, torch.inf, x.lead.reciprocal())
    return Term(lead=lead, degree=-x.degree, dropped=x.dropped)


def joined(parts: Sequence[Term], join: Callable[[list[Tensor]], Tensor]) -> Term:
    """Values side by side in one tensor of one degree, the largest: smaller ones become 0."""
    counted = [part.degree for part in parts if not _fits_any_degree(part)]
    degree = max(counted or [part.degree for part in parts], default=ZERO)
    smaller = sorted({each for each in counted if each < degree})
    leads = [part.lead if part.degree >= degree else _mask_or_zero(part.lead) for part in parts]
    dropped = frozenset[Reason]().union(*(part.dropped for part in parts))
    note = ""
    if smaller:
        dropped = also(dropped, "lower degree")
        degrees = ", ".join(map(str, smaller))
        note = f"entries of degree {degrees} beside entries of degree {degree} become 0"
    tail = _joined_tail(parts, degree, join)
    known = all(part.is_known for part in parts)
    return Term(
        lead=join(leads), degree=degree, dropped=dropped, tail=tail, followed=known, note=note
    )


def side_by_side(parts: Sequence[Term], join: Callable[[list[Tensor]], Tensor]) -> Term:
    """Joined; refused where the part of the largest degree has no leading coefficient but 0."""
    made = joined(parts, join)
    smaller = [part.degree for part in parts if part.degree < made.degree and not part.vanishes]
    if smaller and made.vanishes:
        raise cancelled(f"a tensor with entries of degree {max(smaller)}", made.degree)
    return made


def chosen(condition: Tensor, x: Term, y: Term) -> Term:
    """x where the condition holds, else y: what is nowhere taken counts for nothing."""
    shape = torch.broadcast_shapes(condition.shape, x.lead.shape, y.lead.shape)
    dtype = torch.result_type(x.lead, y.lead)
    for each, taken in ((x, bool(condition.all())), (y, not bool(condition.any()))):
        if taken and condition.numel():
            return _spread(each, shape, dtype)
    x = replace(x, lead=torch.where(condition, x.lead, torch.zeros_like(x.lead)))
    y = replace(y, lead=torch.where(condition, torch.zeros_like(y.lead), y.lead))
    return side_by_side([x, y], lambda leads: torch.where(condition, leads[0], leads[1]))


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


def _tie(x: Term, y: Term) -> Term:
    made = _added(x, y)
    if not made.dropped or not made.vanishes or (x.vanishes and y.vanishes):
        return made
    raise cancelled("a sum", x.degree)


def difference(x: Term, y: Term) -> Term:
    """x − y to be asked for its sign, which what stands beside the leading coefficients tells."""
    return _added(x, scaled(y, -1)) if x.degree == y.degree else minus(x, y)


def _added(x: Term, y: Term) -> Term:
    lead = _rounded_to_zero(x.lead + y.lead, x.lead, y.lead)
    for each in (x, y):
        if (hidden := masked(each.lead)) is not None:
            lead = torch.where(hidden, torch.minimum(x.lead, y.lead), lead)
    return Term(
        lead=lead,
        degree=x.degree,
        dropped=x.dropped | y.dropped,
        tail=_sum_of(x.tail, y.tail),
        followed=x.is_known and y.is_known,
    )


def _rounded_to_zero(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The sum, 0 where the summands cancel but for their rounding."""
    if not total.is_floating_point():
        return total
    rounding = 4 * torch.finfo(total.dtype).eps * torch.maximum(x.abs(), y.abs())
    gone = (total.abs() <= rounding) & (total != 0)
    return total.masked_fill(gone, 0.0) if bool(gone.any()) else total


def _dominated(larger: Term, smaller: Term, shape: torch.Size, dtype: torch.dtype) -> Term:
    # A copy: a sum shares no memory with its summands, and someone may write into it.
    lead = larger.lead.expand(shape).to(dtype, copy=True, memory_format=torch.contiguous_format)
    note = f"degree {smaller.degree} is dominated"
    if (hidden := masked(smaller.lead)) is not None:
        lead = torch.where(hidden, smaller.lead.to(dtype), lead)
        note = "" if _fits_any_degree(smaller) else note
    elif not smaller.degree and bool((smaller.lead < -1e3).any()):
        note += ": a finite mask, which leaks"
    number = smaller.lead.numel() == 1 and not smaller.degree and not smaller.dropped
    # Beside a 0 a number is only nothing if it is an ε, put there for that case.
    epsilon = number and (abs(float(smaller.lead)) <= 1e-3 or bool(larger.lead.all()))
    reason: Reason = "constant" if epsilon else "lower degree"
    if _fits_any_degree(smaller):
        dropped = larger.dropped | smaller.dropped
        return replace(larger, lead=lead, dropped=dropped, note="", margin=None)
    tail = _sum_of(larger.tail, _spread(smaller, shape, dtype))
    return Term(
        lead=lead,
        degree=larger.degree,
        dropped=also(larger.dropped, reason),
        tail=tail,
        followed=larger.is_known and smaller.is_known,
        note=note,
    )


def _spread(x: Term, shape: torch.Size, dtype: torch.dtype) -> Term:
    lead = x.lead.expand(shape).to(dtype, copy=True, memory_format=torch.contiguous_format)
    tail = _spread(x.tail, shape, dtype) if x.tail is not None else None
    return replace(x, lead=lead, tail=tail, note="", margin=None)


def _sum_of(x: Term | None, y: Term | None) -> Term | None:
    """The sum of two tails; None too where its own leading coefficients cancel."""
    if x is None or y is None:
        return x or y
    try:
        return plus(x, y)
    except NoLimitError:
        return None


def _product_tail(x: Term, y: Term, product: Callable[..., Tensor]) -> Term | None:
    """Data times a value keeps the value's tail; two growing factors' tails are not followed."""
    if x.tail is not None and y.degree == 0 and not y.dropped:
        return times(x.tail, y, product)
    if y.tail is not None and x.degree == 0 and not x.dropped:
        return times(x, y.tail, product)
    return None


def _joined_tail(
    parts: Sequence[Term], degree: Fraction, join: Callable[[list[Tensor]], Tensor]
) -> Term | None:
    """The tails side by side, 0 where a part has none; a part of smaller degree is one."""
    tails = [_part_of_tail(part, degree) for part in parts]
    if not any(tails):
        return None
    none = [Term(lead=torch.zeros_like(part.lead)) for part in parts]
    try:
        return joined([tail or zero for tail, zero in zip(tails, none, strict=True)], join)
    except NoLimitError:
        return None


def _part_of_tail(part: Term, degree: Fraction) -> Term | None:
    if part.degree < degree:
        return None if _fits_any_degree(part) else replace(part, lead=_without_masks(part.lead))
    if part.degree > degree or part.tail is None:
        return None
    return replace(part.tail, lead=part.tail.lead.expand(part.lead.shape))


def _without_masks(lead: Tensor) -> Tensor:
    hidden = masked(lead)
    return lead if hidden is None else lead.masked_fill(hidden, 0.0)


def _fits_any_degree(x: Term) -> bool:
    """Zero for certain, or a mask: the same at every degree."""
    hidden = masked(x.lead)
    rest = x.lead if hidden is None else x.lead.masked_fill(hidden, 0.0)
    return x.zeros_are_certain and not bool(rest.any())


def _mask_or_zero(lead: Tensor) -> Tensor:
    hidden = masked(lead)
    zero = torch.zeros_like(lead)
    return zero if hidden is None else torch.where(hidden, lead, zero)


def cancelled(where: str, degree: Fraction) -> NoLimitError:
    return NoLimitError(
        f"leading coefficients of degree {degree} that cancel to 0 in {where}",
        expected="a leading coefficient that is not 0, since what is left has a lower degree",
        do="change the parameters or inputs that make them cancel, or leave some unscaled",
    )
