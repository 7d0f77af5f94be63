"""Inner products of gradients, without the gradients.

Of a linear map ∂f/∂W = Σ_t δ_t ⊗ x_t, where x is the same for all outputs of a sample, so

    ⟨∂f_1/∂W, ∂f_2/∂W⟩ = Σ_{t,t'} (x_1t · x_2t') (δ_1t · δ_2t')

A lookup is the same with x one-hot. Where T exceeds the fan-in the gradient is the smaller of the
two, and is formed. A parameter that is used several times has a sum of such terms: the products of
different uses count too.
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
    """Gradients of P outputs, each a sum over T of δ_t ⊗ x_t.

    ``delta`` has a second axis, over which inner products are summed: output indices to be
    averaged over.
    """

    axis: int
    """Of the matrix that x lies along."""
    fixed: Shaped[Tensor, "t *f"]
    """x, or the indices where it is one-hot."""
    delta: Float[Tensor, "p i t d"]


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Gradients themselves, flattened."""

    value: Float[Tensor, "p i size"]


Part = Gradient | tuple[Outer, ...]
"""One parameter's gradients, of P outputs of one sample."""


def product(one: Part, two: Part, shape: Sequence[int]) -> Float64[Tensor, "p q"]:
    """Inner products of the gradients of two blocks of outputs, for one parameter."""
    if isinstance(one, Gradient) or isinstance(two, Gradient):
        return _inner(gradient(one, shape).value, gradient(two, shape).value)
    products = [_outer_product(u, v) for u in one for v in two]
    return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def gradient(part: Part, shape: Sequence[int]) -> Gradient:
    """The gradients themselves, of a parameter of that shape."""
    if isinstance(part, Gradient):
        return part
    total = _formed(part[0], shape)
    for term in part[1:]:
        total += _formed(term, shape)
    return Gradient(value=total.flatten(2))


def structured(part: Part, shape: Sequence[int]) -> Part:
    """The smaller of the two forms: T × fan-out numbers an output, or fan-in × fan-out."""
    if isinstance(part, Gradient):
        return part
    numbers = sum(term.delta.shape[2] * term.delta.shape[3] for term in part)
    rows, columns = matrix_shape(shape)
    return part if numbers < rows * columns else gradient(part, shape)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """A parameter as a matrix: all axes but the first are fan-in."""
    columns = 1
    for size in shape[1:]:
        columns *= size
    return shape[0], columns


def _outer_product(u: Outer, v: Outer) -> Float64[Tensor, "p q"]:
    if u.axis == v.axis and u.delta.shape[0] == v.delta.shape[0] == 1:
        return _single_product(u, v)
    if u.axis == v.axis:
        # x x' on δ' first: T² d operations an output, and then one product of T d long vectors.
        X = _gram(u.fixed, v.fixed).to(v.delta.dtype)
        return _inner(u.delta.flatten(2), (X @ v.delta).flatten(2))
    # δ of one lies along x of the other.
    across, back = _along(u.delta, v.fixed), _along(v.delta, u.fixed)
    return _inner(across.flatten(2), back.mT.flatten(2))


def _single_product(u: Outer, v: Outer) -> Float64[Tensor, "1 1"]:
    """Of one output each: every δ_t · δ'_t' first, which leaves T² numbers and no long vector."""
    d = u.delta.shape[3]
    X = _gram(u.fixed, v.fixed)
    total = X.new_zeros((), dtype=torch.float64, device=_exact_device(X))
    for start in range(0, d, _INNER):  # float32 adds up no longer pieces than elsewhere
        part = slice(start, start + _INNER)
        products = u.delta[0, :, :, part] @ v.delta[0, :, :, part].mT
        summed = products.to(total.device).double().sum(0)
        total = total + (summed * X.to(total.device)).sum()
    return total.view(1, 1)


def _exact_device(x: Tensor) -> torch.device:
    """Where float64 is: everywhere but on MPS; kernels are small."""
    return torch.device("cpu") if x.device.type == "mps" else x.device


def _gram(x: Tensor, y: Tensor) -> Float[Tensor, "t u"]:
    """x_t · x'_t', for vectors and for indices of one-hot ones."""
    if x.ndim == 1 and y.ndim == 1:
        return (x[:, None] == y).to(torch.float32)
    if x.ndim == 1:
        return y[:, x].mT
    if y.ndim == 1:
        return x[:, y]
    return x @ y.mT


def _along(delta: Float[Tensor, "p i t d"], x: Tensor) -> Float[Tensor, "p i t u"]:
    return delta[..., x] if x.ndim == 1 else delta @ x.mT


def _formed(term: Outer, shape: Sequence[int]) -> Float[Tensor, "p i rows columns"]:
    """Σ_t δ_t ⊗ x_t."""
    delta, x = term.delta, term.fixed
    rows, columns = matrix_shape(shape)
    if x.ndim == 2:
        return delta.mT @ x if term.axis == 1 else x.mT @ delta
    assert term.axis == 0
    return delta.new_zeros(*delta.shape[:2], rows, columns).index_add_(2, x, delta)


def _inner(a: Float[Tensor, "p i k"], b: Float[Tensor, "q i k"]) -> Float64[Tensor, "p q"]:
    """Σ_{i,k} a b: float32 in short pieces, their sum in float64."""
    a, b = a.flatten(1), b.flatten(1)
    if a.dtype == torch.float64:
        return a @ b.mT
    whole = a.shape[1] // _INNER * _INNER
    pieces = [_pieces(a[:, :whole], b[:, :whole])] if whole else []
    pieces += [(a[:, whole:] @ b[:, whole:].mT)[None]] if whole < a.shape[1] else []
    sums = [x.to(_exact_device(x)).double().sum(0) for x in pieces]
    return sums[0] + sums[1] if len(sums) > 1 else sums[0]


def _pieces(a: Float[Tensor, "p k"], b: Float[Tensor, "q k"]) -> Float[Tensor, "s p q"]:
    """Products of every piece of length _INNER."""
    if len(a) == len(b) == 1:
        return (a * b).view(-1, 1, 1, _INNER).sum(-1)
    return torch.bmm(
        a.unflatten(1, (-1, _INNER)).transpose(0, 1), b.unflatten(1, (-1, _INNER)).permute(1, 2, 0)
    )
