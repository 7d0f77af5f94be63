"""The softmax averages A[K] and J[K] by Kronecker sampling, [DYZ23] eqs. (1.65), (1.155), (A3–A6).

At leading order in 1/C the scores of one head are jointly Gaussian with covariance

    Cov[Ω̃_{1;t1t1'}, Ω̃_{2;t2t2'}] = C_Q C_K F_12 F_1'2'.

With F = A Aᵀ and Z of independent unit normals, Ω̃_α = √(C_Q C_K) A_α Z A_αᵀ has it, across samples
too, so the (|D|T²)² matrix is never formed. With P, P' the attention matrices of two samples,

    A[K] = E[P K P'ᵀ]
    J[K] = E[P (F∘K) P'ᵀ − P ((F P'ᵀ)∘(K P'ᵀ)) − ((P F)∘(P K)) P'ᵀ + (P F P'ᵀ)∘(P K P'ᵀ)].

Control variate: the softmax's linear part about Ω̃ = 0, P₀ = M + M ∘ (Ω̃ − Ω̃·M), M uniform over legal
keys. E[P₀ K P₀'ᵀ] = M K M'ᵀ + C_Q C_K F ∘ J_M[K] is known, with J_M the formula above at P = M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from orderone.theory.points import Normals

PILOT = 256
"""Draws that fix the control variates' coefficients."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the averages are drawn."""

    count: int
    seed: int
    name: str = ""
    """Draws of different names are independent."""
    head_dim: int | None = None
    """C of q and k; None is their Gaussian limit C → ∞."""
    memory: int = 256 * 2**20
    """Bytes that the draws held at one time may take."""


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Over queries a: for the keys' kernels K_g that were asked for, F first."""

    A: Float[Tensor, "g a a"]
    """A[K_g]."""
    through_keys: Float[Tensor, "g a a"]
    """E[(q_1·q_2/C) J-summand of K_g], C_Q F ∘ J[K_g] as C → ∞: gradients that pass keys."""
    through_queries: Float[Tensor, "a a"]
    """E[J-summand of k_1·k_2/C], C_K J[F] as C → ∞: gradients that pass queries."""


def softmax_averages(
    F: Float[Tensor, "a a"],
    F_keys: Float[Tensor, "b b"],
    others: Float[Tensor, "g b b"],
    *,
    legal: Bool[Tensor, "d t s"],
    C_Q: float,
    C_K: float,
    sampling: Sampling,
) -> Averages:
    """Averages for ``F_keys`` and the ``others``, queries of kernel ``F``, keys of ``F_keys``."""
    scores = _scores(F, F_keys, legal, C_Q, C_K, sampling)
    Ks = torch.cat([F_keys[None], others])
    per_draw = 8 * 8 * len(Ks) * len(F) * max(len(F), len(F_keys))
    chunk = max(1, min(sampling.count, sampling.memory // per_draw, 4096))
    total, known, coefficient = None, None, None
    drawn = 0
    for z in scores.points.chunks(chunk):
        summand, control = scores.summands(z, Ks)
        if known is None:
            known = scores.known(Ks)[: control.shape[1]]
        if coefficient is None:
            coefficient = _regression(summand[:PILOT], control[:PILOT])
        rest = summand.sum(0)
        m = control.shape[1]
        rest[:m] -= coefficient * (control.sum(0) - len(control) * known)
        total = rest if total is None else total + rest
        drawn += len(summand)
    assert total is not None
    return scores.averages(total / drawn, len(Ks))


def _regression(
    summand: Float[Tensor, "s m a a"], control: Float[Tensor, "s k a a"]
) -> Float[Tensor, "k a a"]:
    """β of every entry: Cov(summand, control) / Var(control); 0 where the control is constant."""
    k = control.shape[1]
    spread = control - control.mean(0)
    variance = spread.square().mean(0)
    covariance = (spread * (summand[:, :k] - summand[:, :k].mean(0))).mean(0)
    moves = variance > 1e-20
    return torch.where(moves, covariance / torch.where(moves, variance, 1.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """One head's attention, drawn; ``A_q`` and ``A_k`` are roots of the kernels."""

    F: Float[Tensor, "a a"]
    F_keys: Float[Tensor, "b b"]
    A_q: Float[Tensor, "d t r"]
    A_k: Float[Tensor, "d s p"]
    legal: Bool[Tensor, "d t s"]
    C_Q: float
    C_K: float
    head_dim: int | None
    points: Normals

    def summands(self, z: Tensor, Ks: Tensor) -> tuple[Tensor, Tensor]:
        """What is averaged, draw by draw, and the control variates of its first maps."""
        if self.points.mirrored:
            z = torch.cat([z, z * self._mirror()])
        Omega_tilde, qq, kk = self._draw(z)
        P = attention(Omega_tilde, self.legal)
        A, J = quadratic_forms(P, self.F_keys, Ks)
        parts = [A, J if qq is None else qq[:, None] * J]
        if kk is not None:
            # k·k/C is a kernel of each draw's own.
            PF = on_left(P, self.F_keys[None])
            parts.append(_forms(P, PF, own_on_left(P, kk), own_on_left(P, self.F_keys * kk))[1])
        P_0 = linear_part(Omega_tilde, self.legal)
        return torch.cat(parts, dim=1), form(P_0, self._controls(Ks))

    def _controls(self, Ks: Tensor) -> Tensor:
        # Where all dimensions are quasi-random a control of J gains nothing for its cost.
        return torch.cat([Ks, self.F_keys * Ks]) if self.points.mirrored else Ks

    def known(self, Ks: Tensor) -> Tensor:
        """E[P₀ K P₀'ᵀ]."""
        M = uniform(self.legal)[None]
        mean, spread = quadratic_forms(M, self.F_keys, self._controls(Ks))
        return mean[0] + self.C_Q * self.C_K * self.F * spread[0]

    def averages(self, mean: Tensor, g: int) -> Averages:
        # Symmetric but for rounding, which a deep recursion would blow up: roots see one half of F.
        mean = 0.5 * (mean + mean.mT)
        if self.head_dim is not None:
            return Averages(A=mean[:g], through_keys=mean[g : 2 * g], through_queries=mean[-1])
        return Averages(
            A=mean[:g],
            through_keys=self.C_Q * self.F * mean[g:],
            through_queries=self.C_K * mean[g],
        )

    def _draw(self, z: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Ω̃, and at a finite C also q·q/C and k·k/C over all pairs."""
        r, p, C = self.A_q.shape[-1], self.A_k.shape[-1], self.head_dim
        if C is None:
            left = self.A_q.flatten(0, 1) @ z.view(-1, r, p)
            left = left.unflatten(1, self.A_q.shape[:2])
            return math.sqrt(self.C_Q * self.C_K) * (left @ self.A_k.mT), None, None
        q = math.sqrt(self.C_Q / C) * (self.A_q.flatten(0, 1) @ z[:, : r * C].view(-1, r, C))
        k = math.sqrt(self.C_K / C) * (self.A_k.flatten(0, 1) @ z[:, r * C :].view(-1, p, C))
        by_sample = q.unflatten(1, self.A_q.shape[:2]), k.unflatten(1, self.A_k.shape[:2])
        scores = math.sqrt(C) * (by_sample[0] @ by_sample[1].mT)
        return scores, q @ q.mT, k @ k.mT

    def _mirror(self) -> Tensor:
        """Signs that turn Ω̃ into −Ω̃: of all of Z, or of q alone."""
        sign = torch.ones(len(self.points.importance), dtype=torch.float64)
        flipped = len(sign) if self.head_dim is None else self.A_q.shape[-1] * self.head_dim
        sign[:flipped] = -1.0
        return sign


def _scores(
    F: Tensor, F_keys: Tensor, legal: Tensor, C_Q: float, C_K: float, sampling: Sampling
) -> _Scores:
    D, T, S = legal.shape
    A_q, A_k = root(F), root(F_keys)
    q_size, k_size = A_q.square().sum(0), A_k.square().sum(0)
    if sampling.head_dim is None:
        importance = (q_size[:, None] * k_size).flatten()
    else:
        each = torch.ones(sampling.head_dim, dtype=torch.float64)
        importance = torch.cat(
            [torch.outer(q_size, each).flatten(), torch.outer(k_size, each).flatten()]
        )
    points = Normals(
        importance=importance, count=sampling.count, seed=sampling.seed, name=sampling.name
    )
    if points.mirrored:
        half = -(-sampling.count // 2)
        points = Normals(importance=importance, count=half, seed=sampling.seed, name=sampling.name)
    return _Scores(
        F=F,
        F_keys=F_keys,
        A_q=A_q.view(D, T, -1),
        A_k=A_k.view(D, S, -1),
        legal=legal,
        C_Q=C_Q,
        C_K=C_K,
        head_dim=sampling.head_dim,
        points=points,
    )


def root(F: Float[Tensor, "a a"]) -> Float[Tensor, "a r"]:
    """A with F = A Aᵀ: principal directions, the largest first, those without variance dropped.

    Sampling errors may leave a kernel slightly indefinite; its negative directions are dropped too.
    """
    size, direction = torch.linalg.eigh(F)
    kept = size > 1e-12 * size[-1].clamp_min(1e-300)
    A = direction[:, kept] * size[kept].sqrt()
    return A.flip(1) if A.shape[1] else torch.zeros(len(F), 1, dtype=F.dtype)


def attention(
    Omega_tilde: Float[Tensor, "w d t s"], legal: Bool[Tensor, "d t s"]
) -> Float[Tensor, "w d t s"]:
    """Ω: softmax over legal keys, 0 elsewhere and for a query without any."""
    lowest = torch.finfo(Omega_tilde.dtype).min
    return Omega_tilde.masked_fill(~legal, lowest).softmax(-1) * legal


def uniform(legal: Bool[Tensor, "d t s"]) -> Float[Tensor, "d t s"]:
    """Ω at Ω̃ = 0."""
    return attention(torch.zeros(1, *legal.shape, dtype=torch.float64), legal)[0]


def linear_part(
    Omega_tilde: Float[Tensor, "w d t s"], legal: Bool[Tensor, "d t s"]
) -> Float[Tensor, "w d t s"]:
    """P₀ = M + M ∘ (Ω̃ − Ω̃·M)."""
    M = uniform(legal)
    return M + M * (Omega_tilde - (M * Omega_tilde).sum(-1, keepdim=True))


def quadratic_forms(
    P: Float[Tensor, "w d t s"], F: Float[Tensor, "b b"], Ks: Float[Tensor, "g b b"]
) -> tuple[Float[Tensor, "w g a a"], Float[Tensor, "w g a a"]]:
    """Summands of A[K] and of J[K] for every K, with ``F`` the values' kernel."""
    return _forms(P, on_left(P, F[None]), on_left(P, Ks), on_left(P, F * Ks))


def _forms(P: Tensor, PF: Tensor, PK: Tensor, PFK: Tensor) -> tuple[Tensor, Tensor]:
    A = on_right(PK, P)
    # The two middle terms are each other's transposes; half the first term goes with either.
    half = on_right(0.5 * PFK - PF * PK, P)
    return A, half + half.mT + on_right(PF, P) * A


def form(P: Float[Tensor, "w d t s"], Ks: Float[Tensor, "g b b"]) -> Float[Tensor, "w g a a"]:
    """P K P'ᵀ for every K."""
    return on_right(on_left(P, Ks), P)


def on_left(P: Float[Tensor, "w d t s"], Ks: Float[Tensor, "g b b"]) -> Float[Tensor, "w g a b"]:
    """P K: one product a sample for all draws and kernels together."""
    w, D, T, S = P.shape
    g, b = Ks.shape[:2]
    rows = Ks.view(g, D, S, b).permute(1, 2, 0, 3).reshape(D, S, g * b)
    product = P.transpose(0, 1).reshape(D, w * T, S) @ rows
    return product.view(D, w, T, g, b).permute(1, 3, 0, 2, 4).reshape(w, g, D * T, b)


def own_on_left(P: Float[Tensor, "w d t s"], K: Float[Tensor, "w b b"]) -> Float[Tensor, "w 1 a b"]:
    """P K where every draw has a K of its own."""
    return (P @ K.unflatten(1, (P.shape[1], -1))).flatten(1, 2)[:, None]


def on_right(X: Float[Tensor, "w g a b"], P: Float[Tensor, "w d t s"]) -> Float[Tensor, "w g a a"]:
    """X P'ᵀ."""
    w, D, T, S = P.shape
    g, a = X.shape[1:3]
    columns = X.reshape(w, g * a, D, S).transpose(1, 2)
    return (columns @ P.mT).transpose(1, 2).reshape(w, g, a, D * T)
