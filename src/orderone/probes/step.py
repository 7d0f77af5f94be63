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

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float64
from torch import Tensor

_ROW = 1024  # squares that are added in float32
_SMALL = 1 << 15  # below so many elements a tensor is packed with others
_BLOCK = 1 << 17  # elements of a block: three of them fit a processor's own cache
_DEVICE_BLOCK = 1 << 22  # on accelerators, where launches cost more than memory
_TRUSTED = (1e-14, 1e18)  # of a row's norm: outside, float32 squares lose digits or overflow
# (‖rounding‖/(ε‖θ‖))² of numbers rounded to nearest: ulp²/12, and ulp² = ε²x²/m² with mantissas m
# of 1 to 2 whose logarithms are spread evenly, so that the mean of 1/m² is 3/(8 log 2).
_ROUNDING = 1 / (32 * math.log(2))


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
        if whole == elements > 0:
            cut.rows.append((index, flat.view(-1, _ROW)))
            continue
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
    sums = _zeros(4, count, after)
    pairs = list(zip(after.rows, before.rows, strict=True))
    quick = [(i, x, y) for (i, x), (_, y) in pairs if _by_float32(x)]
    exact = [(i, x, y) for (i, x), (_, y) in pairs if not _by_float32(x)]
    if quick:
        by_row = _row_sums([(x, y) for _, x, y in quick])
        exact += _add_trusted(sums, by_row, by_row[:3].sqrt(), quick)
    for index, x, y in exact:
        for a, b in _blocks(x, y):
            products = _products(a.double(), b.to(a.device, non_blocking=True).double())
            sums[:, index] += torch.stack([each.sum() for each in products]).to(sums.device)
    for lengths, (a, b) in _packed(after.rest, before.rest):
        _add(sums, lengths, torch.stack(_products(a, b)))
    return sums


@torch.no_grad()
def squares(of: Pieces, count: int) -> Float64[Tensor, "{count}"]:
    """‖x‖² of each of ``count`` tensors; 0 of those without pieces."""
    sums = _zeros(1, count, of)
    quick = [(index, x) for index, x in of.rows if _by_float32(x)]
    exact = [(index, x) for index, x in of.rows if not _by_float32(x)]
    if quick:
        norms = torch.cat([_row_norms(x) for _, x in quick]).double()[None]
        exact += _add_trusted(sums, norms.square(), norms, quick)
    for index, x in exact:
        for (a,) in _blocks(x):
            sums[0, index] += a.double().square().sum().to(sums.device)
    for lengths, (a,) in _packed(of.rest):
        _add(sums, lengths, a.square()[None])
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

    ‖rounding‖ = 0.212 ε‖θ‖ on average, for numbers rounded to nearest.
    """
    eps = [torch.finfo(dtype).eps if dtype.itemsize <= 2 else 0.0 for dtype in dtypes]
    scale = torch.tensor(eps, dtype=torch.float64, device=squared_norms.device)
    return squared_norms * scale.square() * _ROUNDING


# Sums of rows ------------------------------------------------------------------------------------

_Entry = TypeVar("_Entry", bound="tuple[int, Tensor] | tuple[int, Tensor, Tensor]")


def _blocks(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    elements = _BLOCK if rows[0].device.type == "cpu" else _DEVICE_BLOCK
    blocks = -(-rows[0].numel() // elements)
    # Of equal size: a short one costs as many calls as a full one.
    return zip(*(x.chunk(blocks) for x in rows), strict=True)


def _row_sums(pairs: Sequence[tuple[Tensor, Tensor]]) -> Float64[Tensor, "4 rows"]:
    """The four sums of every row, reduced in float32."""
    scratch = torch.empty(_BLOCK // _ROW, _ROW)
    after, before, step, cross = (list[Tensor]() for _ in range(4))
    for pair in pairs:
        for a, b in _blocks(*pair):
            x, y = a.float(), b.float()
            delta = torch.sub(x, y, out=scratch[: len(x)])
            after.append(torch.linalg.vector_norm(x, dim=-1))
            before.append(torch.linalg.vector_norm(y, dim=-1))
            step.append(torch.linalg.vector_norm(delta, dim=-1))
            cross.append(torch.mul(delta, y, out=delta).sum(-1))
    norms = torch.stack([torch.cat(after), torch.cat(before), torch.cat(step)]).double()
    return torch.cat((norms.square(), torch.cat(cross).double()[None]))


def _row_norms(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.linalg.vector_norm(x, dim=-1)
    return torch.cat([torch.linalg.vector_norm(a.float(), dim=-1) for (a,) in _blocks(x)])


def _add_trusted(
    sums: Float64[Tensor, "q tensors"],
    by_row: Float64[Tensor, "q rows"],
    norms: Float64[Tensor, "p rows"],
    entries: list[_Entry],
) -> list[_Entry]:
    """Add rows' sums to their tensors'; the entries that float32 cannot be trusted with.

    Asked on CPU alone, where an answer costs no wait. NaN is not trusted.
    """
    lengths = [(entry[0], len(entry[1])) for entry in entries]
    low, high = _TRUSTED
    least, most = torch.aminmax(norms)
    if bool(least > low) and bool(most < high):
        _add(sums, lengths, by_row)
        return []
    parts = norms.split([length for _, length in lengths], dim=1)
    trusted = [bool(((part > low) & (part < high)).all()) for part in parts]
    rows = by_row.split([length for _, length in lengths], dim=1)
    for (index, _), each, good in zip(lengths, rows, trusted, strict=True):
        if good:
            sums[:, index] += each.sum(1)
    return [entry for entry, good in zip(entries, trusted, strict=True) if not good]


def _add(
    sums: Float64[Tensor, "q tensors"],
    lengths: Sequence[tuple[int, int]],
    values: Float64[Tensor, "q n"],
) -> None:
    """Add to each tensor's sums its own run of values; a tensor has one run."""
    index = torch.tensor([each for each, _ in lengths])
    of_each = torch.tensor([length for _, length in lengths]).to(values.device, non_blocking=True)
    # One dimension at a time: in two, index_add_ and its like take an element at a time.
    runs = [torch.segment_reduce(row, "sum", lengths=of_each, unsafe=True) for row in values]
    sums[:, index.to(sums.device, non_blocking=True)] += torch.stack(runs).to(sums.device)


def _products(a: Tensor, b: Tensor) -> list[Tensor]:
    delta = a - b
    return [a.square(), b.square(), delta.square(), delta * b]


def _by_float32(a: Tensor) -> bool:
    return a.device.type == "cpu" and a.dtype.itemsize <= 4


def _zeros(quantities: int, count: int, of: Pieces) -> Float64[Tensor, "{quantities} {count}"]:
    """Where sums are gathered: on the first piece's device."""
    device = next((x.device for part in of for _, x in part), torch.device("cpu"))
    return torch.zeros(quantities, count, dtype=torch.float64, device=device)


def _packed(
    *rests: list[tuple[int, Tensor]],
) -> Iterator[tuple[list[tuple[int, int]], list[Tensor]]]:
    """Small pieces side by side in float64, and how long the run of each tensor is."""
    for device in dict.fromkeys(x.device for _, x in rests[0]):
        chosen = [k for k, (_, x) in enumerate(rests[0]) if x.device == device]
        lengths = [(rests[0][k][0], rests[0][k][1].numel()) for k in chosen]
        yield lengths, [_joined([rest[k][1] for k in chosen]).to(device) for rest in rests]


def _joined(tensors: Sequence[Tensor]) -> Float64[Tensor, "_"]:
    alike = len({x.dtype for x in tensors}) == 1  # else half and bfloat16 would meet at half's
    return torch.cat(list(tensors) if alike else [x.double() for x in tensors]).double()


def _flat(x: Tensor) -> Tensor:
    """One dimension in memory's own order; MPS, which has no float64, by way of the CPU."""
    x = x.cpu() if x.device.type == "mps" else x
    if x.is_contiguous():
        return x.view(-1)
    order = sorted(range(x.ndim), key=lambda i: -x.stride(i))
    return x.permute(order).reshape(-1)
