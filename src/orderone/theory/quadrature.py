"""Gaussian averages of any activation to 1e-10: Mehler's series, and where it is slow, a double
integral.

With u, u' unit normals of correlation ρ and h_k(a) = E[σ(√a u) He_k(u)] / √k!,

    ⟨σ(√a u) σ(√b u')⟩ = Σ_k ρ^k h_k(a) h_k(b),

whose remainder after K terms is at most |ρ|^K √(tail(a) tail(b)), tail(a) = E[σ²] − Σ_{k<K} h_k².
The series serves where that bound is small. Elsewhere (kinks near ρ = ±1, large variances) u' is
written as ρu + √(1−ρ²) v and both integrals are done by Gauss–Legendre panels whose edges lie at
the kinks of σ.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.theory.activation import Activation, applied, value_and_slope

REACH = 12.0
"""Integrals end at so many standard deviations."""
INNER_REACH = 9.0
TERMS = (192, 1536)
"""Of Mehler's series: at first, and for the pairs that need more."""
TOLERANCE = 1e-12
"""Of the series' remainder, relative to √(E[σ(w₁)²] E[σ(w₂)²])."""
FINE_REACH = 128.0
"""Beyond, even panels may be wider than what σ does near 0: they end at powers of two as well."""
FINEST = 2.0**-6
POINTS = 16
"""Gauss–Legendre points a panel."""
MOST_PANELS = 1024


def integrated(
    sigma: Activation,
    p: Float[Tensor, "*p"],
    q: Float[Tensor, "*p"],
    rho: Float[Tensor, "*p"],
    s: Float[Tensor, "*p"],
) -> tuple[Float[Tensor, "*p"], Float[Tensor, "*p"]]:
    """⟨σσ⟩ and ⟨σ'σ'⟩ at deviations ``p``, ``q``, correlation ``rho``, ``s`` = √(1−ρ²)."""
    shape = rho.shape
    p, q, rho, s = (t.flatten() for t in (p, q, rho, s))
    deviations, places = torch.cat([p, q]).unique(return_inverse=True)
    i, j = places.chunk(2)
    if deviations.numel() == 0:
        return rho.view(shape), rho.clone().view(shape)
    # Rounded up, so that nearly equal kernels share one search.
    reach = 2.0 ** math.ceil(math.log2(max(REACH * float(deviations.max()), 1e-12)))
    kinks = kinks_of(sigma, reach)
    ends = torch.cat([kinks, *_powers(reach, steps=1)])
    panels = _panels(sigma, deviations, ends)
    result = torch.zeros(2, rho.numel(), dtype=torch.float64)
    slow = torch.arange(rho.numel())
    for terms in TERMS:
        h, square = _hermite(sigma, deviations, ends, panels, terms=terms)
        result[:, slow], bound = _series(h, square, i[slow], j[slow], rho[slow])
        slow = slow[bound > TOLERANCE]
        if not len(slow):
            break
    else:
        pairs = (p[slow], q[slow], rho[slow], s[slow])
        result[:, slow] = _double(sigma, *pairs, kinks, ends, panels)
    return result[0].view(shape), result[1].view(shape)


@lru_cache(maxsize=64)
def kinks_of(sigma: Activation, reach: float) -> Float[Tensor, "k"]:
    """Where σ, σ' or σ'' jumps within ±``reach``: found by halving cells towards the larger jump.

    The jump of a smooth function halves with its cell; that of a kink stays.
    """
    edges = torch.linspace(-reach, reach, 2048 + 1, dtype=torch.float64)
    # No kink may sit on an edge, where two cells would share it: 0 above all.
    edges = edges + edges.diff()[0] / np.e
    edges = torch.cat([edges, *(np.e / 3 * end for end in _powers(reach, steps=4))]).sort().values
    low, high = edges[:-1], edges[1:]
    rows = torch.arange(len(low))
    first = (_germ(sigma, high) - _germ(sigma, low)).abs()
    jump = first
    for _ in range(40):
        middle = (low + high) / 2
        left = (_germ(sigma, middle) - _germ(sigma, low)).abs()
        right = (_germ(sigma, high) - _germ(sigma, middle)).abs()
        worst = torch.maximum(left, right).argmax(0)
        to_left = left[worst, rows] >= right[worst, rows]
        high, low = torch.where(to_left, middle, high), torch.where(to_left, low, middle)
        jump = torch.where(to_left, left, right)
    found = (jump > 1e-4 * (1 + first)).any(0)
    pole = _germ(sigma, high)[:2].abs() > 1e4 * (1 + _germ(sigma, edges[1:])[:2].abs())
    if bool((pole & found).any()):
        raise _no_second_moment()
    return ((low + high) / 2)[found]


def _powers(reach: float, *, steps: int) -> list[Float[Tensor, "k"]]:
    """±2^(k/``steps``) from ``FINEST`` to a large ``reach``; none where even panels see all."""
    if reach <= FINE_REACH:
        return []
    low, high = round(steps * math.log2(FINEST)), round(steps * math.log2(reach))
    powers = 2.0 ** (torch.arange(low, high + 1, dtype=torch.float64) / steps)
    return [-powers, powers]


def _germ(sigma: Activation, w: Tensor) -> Tensor:
    """σ, σ' and σ'' where automatic differentiation has them."""
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        rows = [applied(sigma, w)]
        for _ in range(2):
            if not rows[-1].requires_grad:
                break
            try:
                (slope,) = torch.autograd.grad(rows[-1].sum(), w, create_graph=True)
            except RuntimeError:  # no second derivative of that function
                break
            rows.append(slope)
    germ = torch.stack([row.detach() for row in rows])
    # What overflows is refused later, by its second moment.
    return torch.cat([germ, torch.zeros(3 - len(rows), *w.shape)]).nan_to_num(0.0, 0.0, 0.0)


def _panels(sigma: Activation, deviations: Tensor, ends: Tensor) -> int:
    """How many panels give E[σ²] and E[σ'²]; an activation without them is refused."""
    panels = 16
    before = _moments(sigma, deviations, ends, panels)
    while panels < MOST_PANELS:
        panels *= 2
        after = _moments(sigma, deviations, ends, panels)
        if bool(((after - before).abs() <= 1e-13 * (1e-3 + after.abs())).all()):
            return panels
        before = after
    raise ConfigError(
        f"an activation whose second moment is not settled by {MOST_PANELS} panels",
        expected="a function that is smooth but for a few kinks",
        do="choose another",
    )


def _moments(sigma: Activation, deviations: Tensor, ends: Tensor, panels: int) -> Tensor:
    u, weight = _outer_nodes(deviations, ends, panels)
    both = torch.stack(value_and_slope(sigma, deviations[:, None] * u))
    mass = both.square() * weight
    total = mass.sum(-1)
    # A second moment that exists has no mass left at twelve deviations.
    end = mass[..., u.abs().amax(0) > REACH - 0.5].amax() if mass.numel() else mass.sum()
    finite = bool(torch.isfinite(total).all()) and bool(end <= 1e-9 * (1e-300 + total.max()))
    if not finite:
        raise _no_second_moment()
    return total


def _series(
    h: Float[Tensor, "k 2 v"], square: Float[Tensor, "2 v"], i: Tensor, j: Tensor, rho: Tensor
) -> tuple[Float[Tensor, "2 p"], Float[Tensor, "p"]]:
    """Mehler's sum at every pair, and the bound on what it leaves out, relative to E[σ²]."""
    total = torch.zeros(2, rho.numel(), dtype=torch.float64)
    for row in reversed(h):
        total = total * rho + row[:, i] * row[:, j]
    tail = (square - h.square().sum(0)).clamp_min(0.0)
    share = (tail[:, i] * tail[:, j] / (square[:, i] * square[:, j])).nan_to_num(0.0).sqrt()
    return total, rho.abs() ** len(h) * share.amax(0)


def _no_second_moment() -> ConfigError:
    return ConfigError(
        "an activation without finite second moment",
        expected="E[σ(w)²] and E[σ'(w)²] finite for Gaussian w",
        do="choose an activation that grows more slowly and has no pole",
    )


def _hermite(
    sigma: Activation, deviations: Tensor, ends: Tensor, panels: int, *, terms: int
) -> tuple[Float[Tensor, "k 2 v"], Float[Tensor, "2 v"]]:
    """h_k of σ and of σ' for every deviation, and E[σ²], E[σ'²]."""
    u, weight = _outer_nodes(deviations, ends, max(panels, 64))
    both = torch.stack(value_and_slope(sigma, deviations[:, None] * u))
    # √φ goes with the polynomials, which else would overflow where φ underflows.
    root = torch.exp(-u.square() / 4)
    weighted = both * (weight / root)
    before, now = torch.zeros_like(u), root
    h = torch.empty(terms, 2, deviations.numel(), dtype=torch.float64)
    for k in range(terms):
        h[k] = (weighted * now).sum(-1)
        before, now = now, (u * now - k**0.5 * before) / (k + 1) ** 0.5
    return h, (both.square() * weight).sum(-1)


def _double(
    sigma: Activation,
    p: Tensor,
    q: Tensor,
    rho: Tensor,
    s: Tensor,
    kinks: Tensor,
    ends: Tensor,
    panels: int,
) -> Float[Tensor, "2 p"]:
    """The two averages by the double integral, a few pairs at a time."""
    result = torch.empty(2, rho.numel(), dtype=torch.float64)
    edge = s == 0
    # The inner integrand varies on the scale 1/s; at ρ = ±1 only its weights are left to sum.
    for places, inner in ((edge, 16), (~edge, max(16, math.ceil(panels * float(s.max()))))):
        outer = panels + 9 * len(kinks) + 2 * len(ends)
        step = max(1, 2_000_000 // (POINTS**2 * outer * (inner + len(ends))))
        for chunk in places.nonzero()[:, 0].split(step):
            pairs = (p[chunk], q[chunk], rho[chunk], s[chunk])
            result[:, chunk] = _double_chunk(sigma, *pairs, kinks, ends, panels, inner)
    return result


def _double_chunk(
    sigma: Activation,
    p: Tensor,
    q: Tensor,
    rho: Tensor,
    s: Tensor,
    kinks: Tensor,
    ends: Tensor,
    panels: int,
    inner_panels: int,
) -> Tensor:
    p, q, rho, s = (t[:, None] for t in (p, q, rho, s))
    # The inner integral has boundary layers of width s/|ρ| where ρu carries u' over a kink.
    wall = (kinks / q / rho).nan_to_num(REACH)
    layer = (s / rho.abs()).nan_to_num(REACH)[..., None]
    offsets = torch.tensor([-9.0, -6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0, 9.0], dtype=torch.float64)
    layers = (wall[..., None] + layer * offsets).flatten(1)
    own, others = (ends / p).nan_to_num(REACH), (ends / q / rho).nan_to_num(REACH)
    u, weight = _nodes(torch.cat([own, others, layers], dim=1), panels, REACH)
    inner = ((ends / q)[:, None] - rho[..., None] * u[..., None]) / s[..., None]
    v, inner_weight = _nodes(inner.nan_to_num(INNER_REACH), inner_panels, INNER_REACH)
    w = q[..., None] * (rho[..., None] * u[..., None] + s[..., None] * v)
    within = (torch.stack(value_and_slope(sigma, w)) * inner_weight).sum(-1)
    return (torch.stack(value_and_slope(sigma, p * u)) * within * weight).sum(-1)


def _outer_nodes(deviations: Tensor, ends: Tensor, panels: int) -> tuple[Tensor, Tensor]:
    return _nodes((ends / deviations[:, None]).nan_to_num(REACH), panels, REACH)


def _nodes(
    edges: Float[Tensor, "*r e"], panels: int, reach: float
) -> tuple[Float[Tensor, "*r n"], Float[Tensor, "*r n"]]:
    """Points and weights of ∫ φ(u) du over ±``reach``, in panels that also end at ``edges``."""
    even = torch.linspace(-reach, reach, panels + 1, dtype=torch.float64)
    even = even.expand(*edges.shape[:-1], -1)
    ends = torch.cat([even, edges.clamp(-reach, reach)], dim=-1).sort(dim=-1).values
    x, w = _legendre()
    half = ends.diff(dim=-1)[..., None] / 2
    u = (ends[..., :-1, None] + half * (1 + x)).flatten(-2)
    density = torch.exp(-u.square() / 2) / (2 * torch.pi) ** 0.5
    return u, (half * w).flatten(-2) * density


@lru_cache(maxsize=1)
def _legendre() -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(POINTS)
    return torch.from_numpy(x), torch.from_numpy(w)
