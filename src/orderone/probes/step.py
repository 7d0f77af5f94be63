"""What one optimizer step did: ‖θ‖, ‖δ‖, cos(δ, θ) and 1 − cos(θ_t, θ_{t+1}), [MRGSS21] §5.

δ_t = θ_{t+1} − θ_t. Four sums say everything: ‖θ_{t+1}‖², ‖θ_t‖², ‖δ‖² and θ_t·δ. They are made
in one pass, block by block while the block is in the processor's cache, and δ never exists as a
whole. As in ``core.reductions``, float32 rows are reduced in float32 and added in float64; what
float32 cannot hold, other dtypes of 64 bits, small tensors, and all tensors of accelerators are
reduced in float64. Nothing here waits for an accelerator.

Accuracy: sums to 1e-8 of ‖a‖‖b‖. What follows from them is right to 1e-5 of itself, but 1 − cos of
a step within 1 % of parallel to θ (weight decay alone) only to 1e-7/sin²(δ, θ).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

_ROW = 1024  # squares that are added in float32
_SMALL = 1 << 15  # below so many elements a tensor is packed with others
_BLOCK = 1 << 17  # elements of a block: three of them fit a processor's own cache
_DEVICE_BLOCK = 1 << 22  # on accelerators, where launches cost more than memory
_TRUSTED = (1e-14, 1e18)  # of a row's norm: outside, float32 squares lose digits or overflow
# ‖rounding‖/(ε‖θ‖) of numbers rounded to nearest: ulp²/12, and on average ulp² = ε²x²·3/7.
_ROUNDING = 28**-0.5


class Pieces(NamedTuple):
    """Tensors cut for fast sums, each piece with the number of the tensor that it is of."""

    rows: list[tuple[int, Tensor]]
    """Large tensors: (rows, ``_ROW``)."""
    rest: list[tuple[int, Tensor]]
    """Small tensors and the tails of large ones, in one dimension."""


def pieces(tensors: Iterable[Tensor]) -> Pieces:
    """The tensors' own memory, cut; a copy only where memory is not dense."""
    cut = Pieces([], [])
    for index, tensor in enumerate(tensors):
        flat = _flat(tensor.detach())
        elements = flat.numel()
        whole = elements // _ROW * _ROW if elements >= _SMALL else 0
        if whole:
            cut.rows.append((index, flat[:whole].view(-1, _ROW)))
        if whole < elements:
            cut.rest.append((index, flat[whole:]))
    return cut


def empty_copy(of: Pieces, *, device: torch.device | None = None) -> Pieces:
    """Memory for ``copy_``, on the tensors' own devices or on ``device``."""

    def empty(x: Tensor) -> Tensor:
        pinned = x.is_cuda and device is not None and device.type == "cpu"
        return torch.empty(x.shape, dtype=x.dtype, device=device or x.device, pin_memory=pinned)

    return Pieces(*([(index, empty(x)) for index, x in part] for part in of))


@torch.no_grad()
def copy_(into: Pieces, of: Pieces) -> None:
    """Keep θ_t before a step overwrites it."""
    for kept, new in zip(into, of, strict=True):
        for (_, y), (_, x) in zip(kept, new, strict=True):
            y.copy_(x, non_blocking=True)


@torch.no_grad()
def step_sums(after: Pieces, before: Pieces, count: int) -> Float64[Tensor, "4 {count}"]:
    """‖θ_{t+1}‖², ‖θ_t‖², ‖δ‖² and θ_t·δ of each of ``count`` tensors."""
    parts: list[tuple[int, Tensor]] = []
    scratch = torch.empty(_BLOCK // _ROW, _ROW)
    for (index, x), (_, y) in zip(after.rows, before.rows, strict=True):
        for a, b in _blocks(x, y):
            parts.append((index, _block_sums(a, b.to(a.device, non_blocking=True), scratch)))
    sums = _collected(parts, 4, count, after)
    for owner, a, b in _packed(after.rest, before.rest):
        products = torch.stack(_products(a, b))
        sums.index_add_(1, owner.to(sums.device), products.to(sums.device))
    return sums


@torch.no_grad()
def squares(of: Pieces, count: int) -> Float64[Tensor, "{count}"]:
    """‖x‖² of each of ``count`` tensors; 0 of those without pieces."""
    parts = [(index, _block_squares(a)) for index, x in of.rows for (a,) in _blocks(x)]
    sums = _collected(parts, 1, count, of)
    for owner, a in _packed(of.rest):
        sums.index_add_(1, owner.to(sums.device), a.square()[None].to(sums.device))
    return sums[0]


class Geometry(NamedTuple):
    """One step of each group of parameters; NaN where an angle does not exist."""

    norm: Float64[Tensor, "groups"]
    """‖θ_{t+1}‖."""
    step_norm: Float64[Tensor, "groups"]
    """‖δ‖."""
    relative_step: Float64[Tensor, "groups"]
    """‖δ‖/‖θ_t‖."""
    alignment: Float64[Tensor, "groups"]
    """cos(δ, θ_t), [MRGSS21] §5.5."""
    one_minus_cosine: Float64[Tensor, "groups"]
    """1 − cos(θ_t, θ_{t+1})."""


def geometry(sums: Float64[Tensor, "4 groups"]) -> Geometry:
    """Norms and angles from the four sums, with no difference of nearly equal numbers.

    The triangle of θ_t, δ and θ_{t+1} has height ‖δ‖ sin(δ, θ_t) = ‖θ_{t+1}‖ sin φ, and
    1 − cos φ = sin²φ/(1 + cos φ).
    """
    squared_next, squared, squared_step, cross = sums
    norm, following, step = squared.sqrt(), squared_next.sqrt(), squared_step.sqrt()
    alignment = (cross / (norm * step)).clamp(-1.0, 1.0)
    cos = ((squared + cross) / (norm * following)).clamp(-1.0, 1.0)
    sin2 = squared_step * (1 - alignment.square()) / squared_next
    small = torch.where(cos > 0, sin2 / (1 + cos), 1 - cos)
    # A step of zero has no direction, and turns nothing.
    turned = torch.where((squared_step == 0) & (squared > 0), 0.0, small)
    return Geometry(following, step, step / norm, alignment, turned)


def rounding_squares(
    squared_norms: Float64[Tensor, "tensors"], dtypes: Sequence[torch.dtype]
) -> Float64[Tensor, "tensors"]:
    """‖rounding‖² that storing θ in 16 bits adds to a step; 0 for wider dtypes, where it is none.

    ‖rounding‖ = ε‖θ‖/√28 on average, for numbers rounded to nearest.
    """
    eps = [torch.finfo(dtype).eps if dtype.itemsize <= 2 else 0.0 for dtype in dtypes]
    scale = torch.tensor(eps, dtype=torch.float64, device=squared_norms.device) * _ROUNDING
    return squared_norms * scale.square()


# Sums of blocks ----------------------------------------------------------------------------------


def _blocks(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    elements = _BLOCK if rows[0].device.type == "cpu" else _DEVICE_BLOCK
    return zip(*(x.split(elements // _ROW) for x in rows), strict=True)


def _block_sums(a: Tensor, b: Tensor, scratch: Tensor) -> Float64[Tensor, "4"]:
    if not _by_float32(a):
        return _exact_sums(a, b)
    x, y = a.float(), b.float()
    delta = torch.sub(x, y, out=scratch[: len(x)])
    norms = torch.stack([torch.linalg.vector_norm(each, dim=-1) for each in (x, y, delta)])
    if not _trusted(norms):
        return _exact_sums(a, b)
    cross = torch.mul(delta, y, out=delta).sum(-1)
    return torch.cat((norms.double().square().sum(1), cross.double().sum()[None]))


def _block_squares(a: Tensor) -> Float64[Tensor, "1"]:
    if _by_float32(a):
        norms = torch.linalg.vector_norm(a.float(), dim=-1)
        if _trusted(norms):
            return norms.double().square().sum()[None]
    return a.double().square().sum()[None]


def _exact_sums(a: Tensor, b: Tensor) -> Float64[Tensor, "4"]:
    return torch.stack([each.sum() for each in _products(a.double(), b.double())])


def _products(a: Tensor, b: Tensor) -> list[Tensor]:
    delta = a - b
    return [a.square(), b.square(), delta.square(), delta * b]


def _by_float32(a: Tensor) -> bool:
    return a.device.type == "cpu" and a.dtype.itemsize <= 4


def _trusted(norms: Tensor) -> bool:
    """Asked on CPU alone, where an answer costs no wait; NaN is not trusted."""
    low, high = _TRUSTED
    least, most = torch.aminmax(norms)
    return bool(least > low) and bool(most < high)


def _collected(
    parts: Sequence[tuple[int, Tensor]], quantities: int, count: int, of: Pieces
) -> Float64[Tensor, "{quantities} {count}"]:
    """Blocks' sums added up by tensor, on the first piece's device."""
    device = next((x.device for part in of for _, x in part), torch.device("cpu"))
    sums = torch.zeros(quantities, count, dtype=torch.float64, device=device)
    if parts:
        owner = torch.tensor([index for index, _ in parts]).to(device, non_blocking=True)
        values = torch.stack([value.to(device) for _, value in parts], dim=1)
        sums.index_add_(1, owner, values)
    return sums


def _packed(*rests: list[tuple[int, Tensor]]) -> Iterator[tuple[Tensor, ...]]:
    """Small pieces side by side in float64, with the number of each element's tensor."""
    for device in dict.fromkeys(x.device for _, x in rests[0]):
        chosen = [k for k, (_, x) in enumerate(rests[0]) if x.device == device]
        owners = torch.tensor([rests[0][k][0] for k in chosen])
        lengths = torch.tensor([rests[0][k][1].numel() for k in chosen])
        owner = owners.repeat_interleave(lengths).to(device, non_blocking=True)
        yield owner, *(_joined([rest[k][1] for k in chosen]).to(device) for rest in rests)


def _joined(tensors: Sequence[Tensor]) -> Float64[Tensor, "_"]:
    alike = len({x.dtype for x in tensors}) == 1  # else half and bfloat16 would meet at half's
    return torch.cat(list(tensors) if alike else [x.double() for x in tensors]).double()


def _flat(x: Tensor) -> Tensor:
    """One dimension in memory's own order; MPS, which has no float64, by way of the CPU."""
    x = x.cpu() if x.device.type == "mps" else x
    order = sorted(range(x.ndim), key=lambda i: -x.stride(i))
    return x.permute(order).reshape(-1)
