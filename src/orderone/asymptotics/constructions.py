"""Heads and a recogniser made by hand of saturated attention, [MRGSS21] §4.2.

Two heads are enough to count: one that looks at the position of the largest score (V = I, scores
from M = K Qᵀ), and one whose scores are all equal, so that it gives the mean of V h_j.
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orderone.asymptotics.attention import saturated_attention
from orderone.core.errors import DataError

LETTERS = "abc"

# What the recogniser keeps in each coordinate of its residual stream.
_LETTER = slice(0, 3)
_ANGLE = slice(3, 5)
_ANGLE_BEFORE = slice(5, 7)
_RANK_BEFORE = 7
_SHARE = slice(8, 11)
_DESCENT, _UNEQUAL, _DESCENTS = 11, 12, 13
_WIDTH = 14


class Head(nn.Module):
    """r_i = Σ_j A_ij V h_j, A the saturated attention of the scores (Q h_i)·(K h_j)."""

    def __init__(
        self, *, Q: Float[Tensor, "c n"], K: Float[Tensor, "c n"], V: Float[Tensor, "m n"]
    ) -> None:
        super().__init__()
        self.Q, self.K, self.V = (nn.Parameter(each) for each in (Q, K, V))

    def scores(self, h: Float[Tensor, "*b t n"]) -> Float[Tensor, "*b t t"]:
        """What softmax would be given."""
        return (h @ self.Q.mT) @ (h @ self.K.mT).mT

    def weights(self, h: Float[Tensor, "*b t n"]) -> Float[Tensor, "*b t t"]:
        return saturated_attention(self.scores(h))

    def forward(self, h: Float[Tensor, "*b t n"]) -> Float[Tensor, "*b t m"]:
        return self.weights(h) @ h @ self.V.mT


class SoftHead(Head):
    """The head as it is trained, with a softmax: its saturated network is ``Head``."""

    def weights(self, h: Float[Tensor, "*b t n"]) -> Float[Tensor, "*b t t"]:
        return self.scores(h).softmax(dim=-1)


def argmax_head(M: Float[Tensor, "n n"]) -> Head:
    """Gives h_j of the j with the largest h_jᵀ M h_i, and the mean of those that tie."""
    eye = torch.eye(len(M), dtype=M.dtype)
    return Head(Q=M, K=eye, V=eye)


def mean_head(V: Float[Tensor, "m n"]) -> Head:
    """Gives the mean of V h_j over all positions: equal scores tie everywhere."""
    nothing = torch.zeros(1, V.shape[-1], dtype=V.dtype)
    return Head(Q=nothing, K=nothing, V=V)


class Recognizer(nn.Module):
    """A saturated transformer that says whether a string is aⁿbⁿcⁿ, n ≥ 1, by counting.

    It has T positions and takes strings of any length up to that. The first attention looks at the
    letter before, and takes the share of each letter; the MLP rectifies, at every position, how
    far the letter's rank fell from the one before, and how unequal the shares are; the second
    attention averages the falls. A string is recognised if both are less than any string of at
    most T letters can make them other than 0. ``heads=SoftHead`` is the same network at c = 1.
    """

    def __init__(self, T: int, *, heads: type[Head] = Head) -> None:
        super().__init__()
        self.T = T
        self.letters = nn.Parameter(_letters())
        self.positions = nn.Parameter(_positions(T))
        self.before = heads(**_before())
        self.shares = heads(**_mean_of(_LETTER, _SHARE))
        self.descents = heads(**_mean_of(slice(_DESCENT, _DESCENT + 1), slice(_DESCENTS, _WIDTH)))
        W, X = _rectified()
        self.W, self.X = nn.Parameter(W), nn.Parameter(X)

    def forward(self, letters: Int[Tensor, "b t"]) -> Float[Tensor, "b"]:
        """Above 0 for aⁿbⁿcⁿ, below 0 else; 0, 1, 2 stand for a, b, c."""
        t = letters.shape[1]
        if not 1 <= t <= self.T:
            raise DataError(
                f"strings of {t} letters",
                expected=f"1 to {self.T}",
                do="build the recogniser with more positions",
            )
        h = self.letters[letters] + self.positions[:t]
        h = h + self.before(h) + self.shares(h)
        h = h + (h @ self.W.mT).relu() @ self.X.mT
        h = h + self.descents(h)
        return 1 / (2 * self.T) - h[:, -1, _UNEQUAL] - h[:, -1, _DESCENTS]

    def attention_parameters(self) -> list[str]:
        """Names of what saturates attention when multiplied by c → ∞: every Q and K."""
        return [name for name, _ in self.named_parameters() if name.split(".")[-1] in ("Q", "K")]


def letters(text: str) -> Int[Tensor, "1 t"]:
    """A string over a, b, c as a batch of one."""
    if not text or set(text) - set(LETTERS):
        raise DataError(
            f"the string '{text}'", expected="one or more of the letters a, b, c", do="correct it"
        )
    return torch.tensor([[LETTERS.index(each) for each in text]])


def _letters() -> Tensor:
    table = torch.zeros(3, _WIDTH, dtype=torch.float64)
    table[:, _LETTER] = torch.eye(3, dtype=torch.float64)
    return table


def _positions(T: int) -> Tensor:
    """Each position's place on a quarter circle, and that of the one before."""
    table = torch.zeros(T, _WIDTH, dtype=torch.float64)
    angle = torch.arange(-1, T, dtype=torch.float64) * (torch.pi / 2 / max(T, 1))
    on_circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
    table[:, _ANGLE], table[:, _ANGLE_BEFORE] = on_circle[1:], on_circle[:-1]
    return table


def _before() -> dict[str, Tensor]:
    """Arg max: on a circle the nearest of all places is the place itself.

    The first position has none before it and looks at itself, the nearest there is.
    """
    Q, K = (torch.zeros(2, _WIDTH, dtype=torch.float64) for _ in range(2))
    Q[:, _ANGLE_BEFORE] = K[:, _ANGLE] = torch.eye(2, dtype=torch.float64)
    V = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)
    V[_RANK_BEFORE, _LETTER] = torch.arange(3, dtype=torch.float64)
    return {"Q": Q, "K": K, "V": V}


def _mean_of(source: slice, target: slice) -> dict[str, Tensor]:
    V = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)
    V[target, source] = torch.eye(source.stop - source.start, dtype=torch.float64)
    nothing = torch.zeros(1, _WIDTH, dtype=torch.float64)
    return {"Q": nothing, "K": nothing.clone(), "V": V}


def _rectified() -> tuple[Tensor, Tensor]:
    """Falls of rank, and |p_a − p_b| + |p_b − p_c| of the shares p."""
    W = torch.zeros(5, _WIDTH, dtype=torch.float64)
    W[0, _RANK_BEFORE] = 1
    W[0, _LETTER] = -torch.arange(3, dtype=torch.float64)
    shares = range(_SHARE.start, _SHARE.stop)
    for row, (first, second) in enumerate(pairwise(shares)):
        W[1 + 2 * row, first], W[1 + 2 * row, second] = 1, -1
        W[2 + 2 * row] = -W[1 + 2 * row]
    X = torch.zeros(_WIDTH, 5, dtype=torch.float64)
    X[_DESCENT, 0] = 1
    X[_UNEQUAL, 1:] = 1
    return W, X
