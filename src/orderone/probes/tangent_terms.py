"""Inner products of gradients, without the gradients.

Of a linear map ∂f/∂W = Σ_t δ_t ⊗ x_t, where x is the same for all outputs of a sample, so

    ⟨∂f_1/∂W, ∂f_2/∂W⟩ = Σ_{t,t'} (x_1t · x_2t') (δ_1t · δ_2t')

A lookup is the same with x one-hot. Where T exceeds the fan-in the gradient is the smaller of the
two, and is formed. A parameter that is used several times has a sum of such terms: the products of
different uses count too.

Axes: i output indices that are averaged over, p positions, s samples, t the signal's own places;
capitals are those of the second block of outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

_INNER = 4096
"""Products that float32 may add up before float64 takes over: errors stay near its rounding."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Gradients of outputs, each a sum over T of δ_t ⊗ x_t."""

    axis: int
    """Of the matrix that x lies along."""
    fixed: Shaped[Tensor, "s t *f"]
    """x, or the indices where it is one-hot."""
    delta: Float[Tensor, "p i s t d"]


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Gradients themselves, flattened."""

    value: Float[Tensor, "p i s size"]


Part = Gradient | tuple[Outer, ...]
"""One parameter's gradients, of a block of outputs."""


def product(one: Part, two: Part, shape: Sequence[int]) -> Float64[Tensor, "sp SP"]:
    """Inner products of the gradients of two blocks of outputs, for one parameter."""
    if isinstance(one, Gradient) or isinstance(two, Gradient):
        return _inner(*(_by_sample(gradient(part, shape).value) for part in (one, two)))
    products = [_outer_product(u, v) for u in one for v in two]
    return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def gradient(part: Part, shape: Sequence[int]) -> Gradient:
    """The gradients themselves, of a parameter of that shape."""
    if isinstance(part, Gradient):
        return part
    total = _formed(part[0], shape)
    for term in part[1:]:
        total += _formed(term, shape)
    return Gradient(value=total.flatten(3))


def structured(part: Part, shape: Sequence[int]) -> Part:
    """The smaller of the two forms: T × fan-out numbers an output, or fan-in × fan-out."""
    if isinstance(part, Gradient):
        return part
    numbers = sum(term.delta.shape[3] * term.delta.shape[4] for term in part)
    rows, columns = matrix_shape(shape)
    return part if numbers < rows * columns else gradient(part, shape)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """A parameter as a matrix: all axes but the first are fan-in."""
    columns = 1
    for size in shape[1:]:
        columns *= size
    return shape[0], columns


def _outer_product(u: Outer, v: Outer) -> Float64[Tensor, "sp SP"]:
    if u.axis == v.axis and len(u.delta) == len(v.delta) == 1:
        return _single_product(u, v)
    pair = _same_side if u.axis == v.axis else _crossed
    return torch.cat([pair(u, v, s) for s in range(len(u.fixed))])


def _same_side(u: Outer, v: Outer, s: int) -> Float64[Tensor, "p SP"]:
    """x x' on δ' first: T² d operations an output, and then one product of T d long vectors."""
    X = _gram(u.fixed[s : s + 1], v.fixed)[0].to(v.delta.dtype)
    return _inner(u.delta[:, :, s].flatten(1), _by_sample(X.transpose(0, 1) @ v.delta))


def _crossed(u: Outer, v: Outer, s: int) -> Float64[Tensor, "p SP"]:
    """δ of one lies along x of the other."""
    across = _along(u.delta[:, :, s], v.fixed.flatten(0, 1)).unflatten(-1, v.fixed.shape[:2])
    back = _along(v.delta, u.fixed[s])
    ours = across.permute(3, 0, 1, 2, 4).flatten(2)  # (p i t S T) to (S p itT)
    theirs = back.permute(2, 0, 1, 4, 3).flatten(2)  # (P i S T t) to (S P itT)
    return _inner(ours, theirs).transpose(0, 1).flatten(1)


def _single_product(u: Outer, v: Outer) -> Float64[Tensor, "s S"]:
    """Of one position each: every δ_t · δ'_t' first, which leaves T² numbers and no long vector."""
    X = _gram(u.fixed, v.fixed)
    total = X.new_zeros(X.shape, dtype=torch.float64, device=_exact_device(X))
    for start in range(0, u.delta.shape[4], _INNER):  # no longer pieces than elsewhere
        ours, theirs = (each.delta[0, ..., start : start + _INNER].flatten(1, 2) for each in (u, v))
        products = (ours @ theirs.mT).to(total.device).double()
        total += products.sum(0).view(X.shape)
    return (total * X.to(total.device)).sum((1, 3))


def _by_sample(x: Float[Tensor, "p i s *k"]) -> Float[Tensor, "sp ik"]:
    """One long vector an output, sample-major."""
    return x.permute(2, 0, 1, *range(3, x.ndim)).flatten(2).flatten(0, 1)


def _exact_device(x: Tensor) -> torch.device:
    """Where float64 is: everywhere but on MPS; kernels are small."""
    return torch.device("cpu") if x.device.type == "mps" else x.device


def _gram(x: Shaped[Tensor, "s t *f"], y: Shaped[Tensor, "S T *g"]) -> Float[Tensor, "s t S T"]:
    """x_t · x'_t', for vectors and for indices of one-hot ones."""
    if x.ndim == 2 and y.ndim == 2:
        return (x[:, :, None, None] == y).to(torch.float32)
    if x.ndim == 2:
        return y[..., x].permute(2, 3, 0, 1)
    if y.ndim == 2:
        return x[..., y]
    products = x.flatten(0, 1) @ y.flatten(0, 1).mT
    return products.unflatten(1, y.shape[:2]).unflatten(0, x.shape[:2])


def _along(delta: Float[Tensor, "*a d"], x: Shaped[Tensor, "u *f"]) -> Float[Tensor, "*a u"]:
    return delta[..., x] if x.ndim == 1 else delta @ x.mT


def _formed(term: Outer, shape: Sequence[int]) -> Float[Tensor, "p i s rows columns"]:
    """Σ_t δ_t ⊗ x_t."""
    delta, x = term.delta, term.fixed
    rows, columns = matrix_shape(shape)
    if x.ndim == 3:
        return delta.mT @ x if term.axis == 1 else x.mT @ delta
    assert term.axis == 0
    samples = len(x)
    tables = delta.new_zeros(*delta.shape[:2], samples * rows, columns)
    own = x + rows * torch.arange(samples, device=x.device)[:, None]
    tables.index_add_(2, own.flatten(), delta.flatten(2, 3))
    return tables.unflatten(2, (samples, rows))


def _inner(a: Float[Tensor, "*b m k"], b: Float[Tensor, "*b n k"]) -> Float64[Tensor, "*b m n"]:
    """Σ_k a b: float32 in short pieces, their sum in float64."""
    if a.dtype == torch.float64:
        return a @ b.mT
    whole = a.shape[-1] // _INNER * _INNER
    sums: list[Tensor] = []
    if whole:
        sums.append(_exact_sum(_pieces(a[..., :whole]), _pieces(b[..., :whole])))
    if whole < a.shape[-1]:
        sums.append(_exact_sum(a[..., None, :, whole:], b[..., None, :, whole:]))
    return sums[0] if len(sums) == 1 else sums[0] + sums[1]


def _pieces(a: Float[Tensor, "*b m k"]) -> Float[Tensor, "*b c m piece"]:
    """Parts of length _INNER."""
    return a.unflatten(-1, (-1, _INNER)).movedim(-2, -3)


def _exact_sum(
    a: Float[Tensor, "*b c m piece"], b: Float[Tensor, "*b c n piece"]
) -> Float64[Tensor, "*b m n"]:
    """Products of every piece, added up in float64."""
    products = (a * b).sum(-1)[..., None] if a.shape[-2] == b.shape[-2] == 1 else a @ b.mT
    return products.to(_exact_device(products)).double().sum(-3)
