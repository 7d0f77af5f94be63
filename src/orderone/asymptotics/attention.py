"""Saturated attention: what softmax becomes when its scores grow, [MRGSS21] §4.2."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orderone.asymptotics.term import NoLimitError, Term, also, lowest, masked

aten: Any = torch.ops.aten


def saturated_attention(
    scores: Float[Tensor, "*rows k"], *, tolerance: float = 0.0
) -> Float[Tensor, "*rows k"]:
    """lim softmax(c · scores): 1/|M| on the |M| largest scores of a row, 0 elsewhere.

    [MRGSS21] §4.2. −∞ removes a position; a row of nothing but −∞ attends to nothing. Scores
    closer to the largest than ``tolerance`` times the row's largest magnitude are ties as well.
    """
    ties = tied(scores, tolerance=tolerance)
    return ties / ties.sum(dim=-1, keepdim=True).clamp(min=1)


def tied(scores: Float[Tensor, "*rows k"], *, tolerance: float) -> Float[Tensor, "*rows k"]:
    """1 at the largest scores of every row, 0 elsewhere."""
    return (_gaps(scores) <= tolerance).to(scores.dtype)


def saturated_softmax(scores: Term, dim: int) -> Term:
    """Softmax of scores that grow; what was dominated in them decides ties."""
    lead = scores.lead.movedim(dim, -1)
    tolerance = rounding(lead.dtype)
    gaps = _gaps(lead)
    if bool(gaps.isnan().any()):
        raise NoLimitError(
            "scores of attention that are not numbers", expected="numbers", do="check the inputs"
        )
    ties = gaps <= tolerance
    rest = gaps[~ties & gaps.isfinite()]
    margin = float(rest.min()) if rest.numel() else None
    note = "" if margin is None else f"margin {margin:.1e}"
    # An arg max forgets what is beside the leading scores, ties excepted.
    dropped = also(scores.dropped - {"constant", "lower degree"}, "saturation")
    if bool((ties.sum(dim=-1) > 1).any()):
        ties, said, certain = _decided(ties, scores, dim)
        note = ", ".join(filter(None, (note, said)))
        dropped = dropped if certain else also(dropped, "tie")
    weights = ties.to(lead.dtype) / ties.sum(dim=-1, keepdim=True).clamp(min=1)
    return Term(lead=weights.movedim(-1, dim), dropped=dropped, note=note, margin=margin)


def rounding(dtype: torch.dtype) -> float:
    """Relative gap below which two scores are the same number, rounded differently.

    Half precision is rounded once, after a sum in single precision.
    """
    return (64 if dtype.itemsize > 2 else 1) * torch.finfo(dtype).eps


def _decided(ties: Tensor, scores: Term, dim: int) -> tuple[Tensor, str, bool]:
    """Ties of the leading coefficients, decided by the dominated summands; whether for certain.

    What products dropped before cannot decide them, since it is not known.
    """
    shared, tail = ties, scores.tail
    while tail is not None and tail.degree > 0:
        among = _along(tail, scores, dim).masked_fill(~shared, -torch.inf)
        shared = shared & (_gaps(among) <= rounding(among.dtype))
        tail = tail.tail
    rows = int((shared.sum(dim=-1) > 1).sum())
    certain = scores.is_known
    if not rows:
        return shared, "ties decided by a lower degree", certain
    if tail is not None and not tail.degree:
        among = _along(tail, scores, dim).masked_fill(~shared, -torch.inf)
        empty = ~shared.any(dim=-1, keepdim=True)
        return (
            torch.softmax(among, -1).masked_fill(empty, 0.0),
            "ties shared by finite parts",
            certain,
        )
    return shared, f"{rows} rows tied" + ("" if certain else " as far as is known"), certain


def _along(tail: Term, scores: Term, dim: int) -> Tensor:
    return tail.lead.expand(scores.lead.shape).movedim(dim, -1)


def _gaps(scores: Tensor) -> Tensor:
    """Distance from the row's largest score, relative to its largest magnitude; ∞ where masked."""
    largest = scores.amax(dim=-1, keepdim=True)
    hidden = masked(scores)
    if hidden is None:
        size = scores.abs().amax(dim=-1, keepdim=True)
        return _relative(largest - scores, size)
    size = scores.masked_fill(hidden, 0.0).abs().amax(dim=-1, keepdim=True)
    gaps = _relative(largest - scores, size).masked_fill(hidden, torch.inf)
    # A row that is masked throughout: by −∞ nothing is left, by a finite minimum all are alike.
    finite = (largest <= lowest(scores.dtype)) & largest.isfinite()
    return torch.where(finite & (scores == largest), 0.0, gaps)


def _relative(gap: Tensor, size: Tensor) -> Tensor:
    return torch.where(size > 0, gap / size.clamp(min=torch.finfo(gap.dtype).tiny), gap)


def softmax(scores: Term, dim: int, *unused: Any) -> Term:
    """Softmax at any degree: arg max above 0, uniform below."""
    del unused
    if scores.degree > 0:
        return saturated_softmax(scores, dim)
    lead = scores.lead
    if scores.degree == 0:
        return Term(lead=aten._safe_softmax(lead, dim), dropped=scores.dropped)
    hidden = masked(lead)
    equal = torch.zeros_like(lead) if hidden is None else torch.where(hidden, lead, 0.0)
    dropped = also(scores.dropped, "lower degree")
    return Term(lead=aten._safe_softmax(equal, dim), dropped=dropped)


def log_softmax(scores: Term, dim: int, *unused: Any) -> Term:
    """Log-probabilities: of degree 0 as they are, else the distance from the largest score."""
    del unused
    if scores.degree < 0:
        scores = Term(
            lead=torch.zeros_like(scores.lead), dropped=also(scores.dropped, "lower degree")
        )
    if scores.degree == 0:
        return Term(lead=scores.lead.log_softmax(dim), dropped=scores.dropped)
    lead = scores.lead - scores.lead.amax(dim=dim, keepdim=True)
    if scores.dropped <= {"saturation"} and not bool(lead.any()):  # all are the same for certain
        return Term(lead=lead.log_softmax(dim), dropped=scores.dropped)
    made = Term(lead=lead, degree=scores.degree, dropped=also(scores.dropped, "saturation"))
    ties = bool(((lead == 0).sum(dim=dim) > 1).any())  # −log of how many there are is left
    return replace(made, dropped=also(made.dropped, "lower degree")) if ties else made
