"""⟨σ(w₁)σ(w₂)⟩ and ⟨σ'(w₁)σ'(w₂)⟩ over Gaussian pairs, [DYZ23] eqs. (1.74), (1.77), (1.169).

(w₁, w₂) has mean zero, variances a and b, and covariance c. With Δ = (1+a)(1+b) − c²:

    linear  ⟨σσ⟩ = c                                         ⟨σ'σ'⟩ = 1
    ReLU    ⟨σσ⟩ = (√(ab − c²) + c (π − θ)) / 2π             ⟨σ'σ'⟩ = (π − θ) / 2π,  cos θ = c/√(ab)
    erf     ⟨σσ⟩ = (2/π) arcsin(2c / √((1+2a)(1+2b)))        ⟨σ'σ'⟩ = (4/π) / √((1+2a)(1+2b) − 4c²)
    GELU    ⟨σσ⟩ = c ⟨ΦΦ⟩ + (ab + c² (1/(1+a) + 1/(1+b) − 1)) ⟨φφ⟩
            ⟨σ'σ'⟩ = ⟨ΦΦ⟩ + c (1/(1+a) + 1/(1+b) + 1/Δ) ⟨φφ⟩
            ⟨φφ⟩ = 1 / (2π √Δ),  ⟨ΦΦ⟩ = ¼ + arcsin(c / √((1+a)(1+b))) / 2π

GELU's follow from σ = wΦ(w), σ' = Φ(w) + wφ(w) by Gaussian integration by parts,
⟨w₁ h⟩ = a ⟨∂₁h⟩ + c ⟨∂₂h⟩, until only ⟨ΦΦ⟩, ⟨φφ⟩ and ⟨w₁w₂φφ⟩ = c ⟨φφ⟩ / Δ are left. All but ReLU's
are smooth at ρ = ±1 and at zero variance. Everything else is integrated, see ``quadrature``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.theory.activation import CLOSED, Activation, activation
from orderone.theory.quadrature import integrated

ULPS = 4.0
"""|ρ| is 1 where √(ab) − |c| is below so many roundings of √(ab): inputs say no more."""


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Of all pairs: ``values`` ⟨σσ⟩ and ``slopes`` ⟨σ'σ'⟩."""

    values: Float[Tensor, "*p"]
    slopes: Float[Tensor, "*p"]


def averages(sigma: str | Activation, K: Float[Tensor, "a a"]) -> Averages:
    """⟨σσ⟩_K and ⟨σ'σ'⟩_K for every pair of the covariance ``K``."""
    diagonal = K.diagonal()
    return pair_averages(sigma, diagonal[:, None], diagonal[None, :], K)


def pair_averages(
    sigma: str | Activation,
    a: Float[Tensor, "*#p"],
    b: Float[Tensor, "*#p"],
    c: Float[Tensor, "*#p"],
) -> Averages:
    """The averages of pairs with variances ``a``, ``b`` and covariance ``c``, in float64."""
    a, b, c = torch.broadcast_tensors(a.double(), b.double(), c.double())
    _refuse_impossible(a, b, c)
    if isinstance(sigma, str) and sigma in CLOSED:
        values, slopes = _CLOSED_FORMS[sigma](a, b, c)
        return Averages(values=values, slopes=slopes)
    function = activation(sigma) if isinstance(sigma, str) else sigma
    rho, s = correlation(a, b, c)
    values, slopes = integrated(function, a.sqrt(), b.sqrt(), rho, s)
    return Averages(values=values, slopes=slopes)


def correlation(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """ρ and √(1 − ρ²) without the cancellation of 1 − ρ²; 0 and 1 where a variance is 0."""
    top = a.sqrt() * b.sqrt()
    # √a √a need not round to a: on the diagonal c itself is the exact product.
    top = torch.where(a == b, a, top)
    gap = (top - c.abs()).clamp_min(0.0)
    gap = torch.where(gap <= ULPS * torch.finfo(top.dtype).eps * top, 0.0, gap)
    some = top > 0
    short = gap / torch.where(some, top, 1.0)
    rho = torch.where(some, c.sign() * (1 - short), 0.0)
    s = torch.where(some, (short * (2 - short)).sqrt(), 1.0)
    return rho, s


def determinant(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """ab − c² without its cancellation."""
    _, s = correlation(a, b, c)
    return a * b * s.square()


def _linear(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return c.clone(), torch.ones_like(c)


def _relu(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    rho, s = correlation(a, b, c)
    angle = math.pi - torch.atan2(s, rho)
    values = (a.sqrt() * b.sqrt()) * (s + rho * angle) / (2 * math.pi)
    # σ'(0) = 0, as automatic differentiation has it: w is exactly 0 where its variance is.
    slopes = torch.where((a > 0) & (b > 0), angle / (2 * math.pi), 0.0)
    return values, slopes


def _erf(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    root = (1 + 2 * (a + b) + 4 * determinant(a, b, c)).sqrt()
    # arcsin by its tangent, which keeps its digits near ρ = ±1.
    return 2 / math.pi * torch.atan2(2 * c, root), 4 / math.pi / root


def _gelu(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    free = determinant(a, b, c)
    delta = 1 + a + b + free
    phi_phi = delta.rsqrt() / (2 * math.pi)
    # ¼ + arcsin / 2π, which is small where c is near −√(ab), as one angle.
    Phi_Phi = torch.atan2(delta.sqrt(), -c) / (2 * math.pi)
    shrink = 1 / (1 + a) + 1 / (1 + b)
    values = c * Phi_Phi + (free + c * c * shrink) * phi_phi
    return values, Phi_Phi + c * (shrink + 1 / delta) * phi_phi


_CLOSED_FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "linear": _linear,
    "relu": _relu,
    "erf": _erf,
    "gelu": _gelu,
}


def _refuse_impossible(a: Tensor, b: Tensor, c: Tensor) -> None:
    """No Gaussian has a negative variance or |c| > √(ab)."""
    top = a.clamp_min(0).sqrt() * b.clamp_min(0).sqrt()
    wrong = (a < 0) | (b < 0) | ~(c.abs() <= top * (1 + 1e-6) + 1e-300)
    if bool(wrong.any()):
        at = int(wrong.flatten().nonzero()[0])
        x, y, z = (float(t.flatten()[at]) for t in (a, b, c))
        raise ConfigError(
            f"variances {x:.6g} and {y:.6g} with covariance {z:.6g}",
            expected="a positive semidefinite kernel",
            do="correct the kernel that was given",
        )
