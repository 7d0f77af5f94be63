"""Which keys a query may attend to."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Legal keys: not in the future where ``causal``, and among the ``keys`` that are real.

    ``keys`` is None where no key is a pad: then the fast kernels need no mask at all.
    """

    keys: Bool[Tensor, "b 1 #q k"] | None
    """For the fast path: real keys, and not future ones."""
    empty: Bool[Tensor, "b 1 #q 1"] | None
    """Queries without a legal key: they attend to nothing and receive 0."""
    causal: bool
    future: Literal["infinite", "zero"] = "infinite"

    def legal(self, q: int, k: int, device: torch.device) -> Bool[Tensor, "#b 1 #q k"] | None:
        """Every legal pair, or None where all are."""
        if self.keys is not None:
            return self.keys
        if not self.causal or self.future == "zero":
            return None
        return past(q, k, device)[None, None]


def mask(
    real: Bool[Tensor, "b k"] | None,
    *,
    causal: bool,
    future: Literal["infinite", "zero"] = "infinite",
) -> Mask:
    """A sequence's mask, built once for all blocks; ``real`` is True for a token, not a pad."""
    if real is None:
        return Mask(keys=None, empty=None, causal=causal, future=future)
    keys = real[:, None, None, :]
    if causal and future == "infinite":
        keys = keys & past(real.shape[1], real.shape[1], real.device)
    empty = ~keys.any(dim=-1, keepdim=True)
    return Mask(keys=keys, empty=empty, causal=causal, future=future)


def past(q: int, k: int, device: torch.device) -> Bool[Tensor, "q k"]:
    """True where t' ≤ t, [DYZ23] eq. (1.18)."""
    return torch.ones(q, k, dtype=torch.bool, device=device).tril()


def attention_weights(scores: Float[Tensor, "b h q k"], given: Mask) -> Float[Tensor, "b h q k"]:
    """Ω = softmax of Ω̃ over legal keys, exactly 0 elsewhere, [DYZ23] eq. (1.17)–(1.18)."""
    q, k = scores.shape[-2:]
    if given.causal and given.future == "zero":
        scores = scores * past(q, k, scores.device)
    legal = given.legal(q, k, scores.device)
    if legal is None:
        return scores.softmax(dim=-1)
    # The lowest finite number, not −∞: a row without a legal key gets no NaN, nor its gradient.
    Omega = scores.masked_fill(~legal, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return Omega.masked_fill(~legal, 0.0)
