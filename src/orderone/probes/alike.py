"""How alike two networks' representations are, token by token, and the controls beside it.

[MRGSS21] §4.1 takes the mean over tokens of cos(f(x; θ), sf(x; θ)). A constant network scores 1
there, so with u_i, v_i the unit vectors of token i in the two networks, over all pairs i ≠ j:

    cosine    mean of u_i·v_i
    other     mean of u_i·u_j: two tokens of one network
    cross     mean of u_i·v_j: two tokens, one in each network
    centred   correlation of u and v: (mean u_i·v_i − ū·v̄) / √((1 − |ū|²)(1 − |v̄|²))

All follow from Σ u, Σ v and Σ u·v, so that tokens are seen once and never kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64
from torch import Tensor

_ROWS = 1024
"""Vectors in float64 at a time."""


@dataclass(kw_only=True)
class Alike:
    """Running sums of one layer."""

    tokens: int = 0
    total: float = 0.0
    sum_u: Tensor | None = None
    sum_v: Tensor | None = None
    # Of each sentence with n tokens whose cosines sum to S: Σ1, ΣS², ΣSn, Σn².
    sentences: int = 0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    by_token: dict[int, tuple[int, float]] = field(default_factory=dict[int, tuple[int, float]])

    def add(
        self,
        f: Float[Tensor, "tokens n"],
        sf: Float[Tensor, "tokens n"],
        lengths: Sequence[int],
        words: Sequence[int] | None = None,
    ) -> None:
        """Tokens of whole sentences, in their order; ``words`` for the breakdown by token."""
        cosines = torch.empty(len(f), dtype=torch.float64)
        for begin in range(0, len(f), _ROWS):
            rows = slice(begin, begin + _ROWS)
            u, v = unit(f[rows]), unit(sf[rows])
            cosines[rows] = (u * v).sum(dim=-1).cpu()
            self.sum_u = u.sum(dim=0) if self.sum_u is None else self.sum_u + u.sum(dim=0)
            self.sum_v = v.sum(dim=0) if self.sum_v is None else self.sum_v + v.sum(dim=0)
        self.tokens += len(f)
        self.total += float(cosines.sum())
        self._add_sentences(cosines, lengths)
        for word, cosine in zip(words or (), cosines.tolist(), strict=False):
            count, total = self.by_token.get(word, (0, 0.0))
            self.by_token[word] = (count + 1, total + cosine)

    def _add_sentences(self, cosines: Float64[Tensor, "tokens"], lengths: Sequence[int]) -> None:
        squared, weighted, counted = self.squares
        for part, n in zip(cosines.split(list(lengths)), lengths, strict=True):
            S = float(part.sum())
            squared, weighted, counted = squared + S * S, weighted + S * n, counted + n * n
        self.squares = squared, weighted, counted
        self.sentences += sum(1 for n in lengths if n)

    @property
    def cosine(self) -> float:
        return self.total / self.tokens

    @property
    def se(self) -> float | None:
        """Standard error of the cosine; sentences are drawn, not tokens, so that they are what
        varies: √(m/(m−1) Σ_s (S_s − n_s mean)²) / N."""
        m = self.sentences
        if m < 2:
            return None
        squared, weighted, counted = self.squares
        mean = self.cosine
        spread = max(0.0, squared - 2 * mean * weighted + mean * mean * counted)
        return math.sqrt(m / (m - 1) * spread) / self.tokens

    @property
    def other(self) -> float | None:
        """Of f; 1 where every token has the same representation."""
        return self._among(self.sum_u)

    @property
    def other_saturated(self) -> float | None:
        """The same of sf."""
        return self._among(self.sum_v)

    @property
    def cross(self) -> float | None:
        if self.tokens < 2 or self.sum_u is None or self.sum_v is None:
            return None
        pairs = self.tokens * (self.tokens - 1)
        return (float(self.sum_u @ self.sum_v) - self.total) / pairs

    @property
    def centred(self) -> float | None:
        """None where one of the networks is constant: nothing is left once its mean is removed."""
        if self.tokens < 2 or self.sum_u is None or self.sum_v is None:
            return None
        u, v = self.sum_u / self.tokens, self.sum_v / self.tokens
        spread = (1 - float(u @ u)) * (1 - float(v @ v))
        if min(1 - float(u @ u), 1 - float(v @ v)) < 1e-9:
            return None
        return (self.cosine - float(u @ v)) / math.sqrt(spread)

    def _among(self, total: Tensor | None) -> float | None:
        if self.tokens < 2 or total is None:
            return None
        return (float(total @ total) - self.tokens) / (self.tokens * (self.tokens - 1))


def unit(x: Float[Tensor, "tokens n"]) -> Float64[Tensor, "tokens n+1"]:
    """x/|x| in float64, with one more coordinate: it is 1 for x = 0 and 0 for all others.

    Two zero vectors are then the same, as they should be: a network that gives 0 is constant.
    """
    wide = x.double()
    # Divided by the largest entry first: squares of large numbers would overflow.
    size = wide.abs().amax(dim=-1, keepdim=True)
    zero = size == 0
    wide = wide / size.masked_fill(zero, 1.0)
    norm = wide.norm(dim=-1, keepdim=True).masked_fill(zero, 1.0)
    return torch.cat([wide / norm, zero.double()], dim=-1)
