"""The algebra of leading terms, [MRGSS21] Table 1.

Degrees add in a product, the larger wins a sum, and values side by side in one tensor share the
largest. Each keeps track of what it drops, and of the tail that may have to decide a tie.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from orderone.asymptotics.term import (
    ZERO,
    NoLimitError,
    Reason,
    Term,
    also,
    cancelled,
    lowest,
    masked,
)


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


def _tie(x: Term, y: Term) -> Term:
    made = _added(x, y)
    if not made.dropped or not made.vanishes or (x.vanishes and y.vanishes):
        return made
    raise cancelled("a sum", x.degree)


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


def minus(x: Term, y: Term) -> Term:
    return plus(x, scaled(y, -1))


def difference(x: Term, y: Term) -> Term:
    """x − y to be asked for its sign, which what stands beside the leading coefficients tells."""
    return _added(x, scaled(y, -1)) if x.degree == y.degree else minus(x, y)


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


def _product_tail(x: Term, y: Term, product: Callable[..., Tensor]) -> Term | None:
    """Data times a value keeps the value's tail; two growing factors' tails are not followed."""
    if x.tail is not None and y.degree == 0 and not y.dropped:
        return times(x.tail, y, product)
    if y.tail is not None and x.degree == 0 and not x.dropped:
        return times(x, y.tail, product)
    return None


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


def _fits_any_degree(x: Term) -> bool:
    """Zero for certain, or a mask: the same at every degree."""
    hidden = masked(x.lead)
    rest = x.lead if hidden is None else x.lead.masked_fill(hidden, 0.0)
    return x.zeros_are_certain and not bool(rest.any())


def _mask_or_zero(lead: Tensor) -> Tensor:
    hidden = masked(lead)
    zero = torch.zeros_like(lead)
    return zero if hidden is None else torch.where(hidden, lead, zero)


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
