"""Norms, dots and angles of parameters, right to float64 at float32's speed.

``torch.linalg.vector_norm`` adds float32 squares in float32: over 5·10⁷ elements on CPU it is
0.4 % off, and 1 − cos computed from it can have the wrong sign. Here rows of up to 4,096 elements
are reduced in float32, where rounding is harmless, and the rows are added in float64.

Each function takes a tensor or a mapping of tensors (the sum over its entries), in any floating
dtype, sharded (DTensor) or not, and returns a 0-dim float64 tensor. Nothing is differentiated.
On CPU float32 and below go by float32 rows; rows that float32 cannot be trusted with (overflow,
underflow, or rows so alike that their rounding errors would not average out) are done again in
float64. On accelerators blocks are reduced in float64 throughout, where it costs little and
nothing waits for the device. MPS has no float64: there the work, and the result, is on the CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from orderone.core.errors import ModelError

Tensors = Tensor | Mapping[str, Tensor]

_ROW = 4096  # float32 squares added in float32 with errors that average out; fewer cost more time
_SHORT_ROW = 256  # bf16's squares take few values: their errors average out less; so do few rows
_LARGE = 1 << 20  # from so many elements rows are long
_GROUP = 64  # rows that are compared with one another before float32 is trusted
_BLOCK = 1 << 18  # elements at a time where a temporary is needed: it stays near the processor
_DEVICE_BLOCK = 1 << 22  # on accelerators, where launches cost more than memory
_SMALL = 1 << 15  # below so many elements float64 costs nothing
_TRUSTED = (1e-28, 1e36)  # of a row's sum: outside, float32 may have lost elements of 1e-19 or 1e19
_ALIKE = 1e-3  # relative spread of a group of rows below which rounding errors are one-sided


def squared_norm(x: Tensors) -> Float64[Tensor, ""]:
    """‖x‖²."""
    return _reduced(_SQUARES, x)


def norm(x: Tensors) -> Float64[Tensor, ""]:
    """‖x‖."""
    return squared_norm(x).sqrt()


def dot(a: Tensors, b: Tensors) -> Float64[Tensor, ""]:
    """a·b; the error is relative to ‖a‖‖b‖, since the terms may cancel."""
    return _reduced(_PRODUCTS, a, b)


def squared_distance(a: Tensors, b: Tensors) -> Float64[Tensor, ""]:
    """‖a − b‖², from the differences themselves, so that close tensors lose no digits."""
    return _reduced(_residuals(None), a, b)


def cosine(a: Tensors, b: Tensors) -> Float64[Tensor, ""]:
    """cos(a, b); NaN when either is zero. Near 1, ``one_minus_cosine`` keeps the digits."""
    return (dot(a, b) / (squared_norm(a) * squared_norm(b)).sqrt()).clamp(-1.0, 1.0)


def one_minus_cosine(a: Tensors, b: Tensors) -> Float64[Tensor, ""]:
    """1 − cos(a, b), right to 1e-5 of itself down to 1e-9; NaN when either is zero.

    With t = a·b/‖a‖² the rest r = b − ta is what b adds to a's direction, ‖r‖² = ‖b‖² sin², and
    1 − cos = sin²/(1 + cos). In float32 the roundings of t and of ta add about 1e-15 to sin².
    """
    aa, bb, ab = squared_norm(a), squared_norm(b), dot(a, b)
    t = ab / aa
    rest = _reduced(_residuals(t), a, b)
    cos = (ab / (aa * bb).sqrt()).clamp(-1.0, 1.0)
    return torch.where(cos > 0, rest / bb / (1 + cos), 1 - cos)


# How rows become numbers -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """The float64 sums of rows, given the operands' rows in one dtype."""

    sums: Callable[..., Tensor]
    needs_temporary: bool


def _squared_norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1).double().square()


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return torch.mul(a, b).sum(-1).double()


_SQUARES = _Form(_squared_norms, needs_temporary=False)
_PRODUCTS = _Form(_dots, needs_temporary=True)


def _residuals(t: Tensor | None) -> _Form:
    """‖b − ta‖² by rows; t = 1 without the multiplication when it is None."""

    def sums(a: Tensor, b: Tensor) -> Tensor:
        scaled = a if t is None else a * t.to(device=a.device, dtype=a.dtype)
        return _squared_norms(b - scaled)

    return _Form(sums, needs_temporary=True)


# One tensor --------------------------------------------------------------------------------------


def _local_sum(form: _Form, *operands: Tensor) -> Tensor:
    """The form's sum over one device's tensors."""
    if operands[0].device.type == "mps":
        operands = tuple(x.cpu() for x in operands)
    flat = _flattened(*operands)
    elements = flat[0].numel()
    fine = elements >= _LARGE and all(x.dtype == torch.float32 for x in flat)
    row = _ROW if fine else _SHORT_ROW
    whole = elements // row * row
    cpu = flat[0].device.type == "cpu"
    double = not cpu or elements < _SMALL or any(x.dtype == torch.float64 for x in flat)
    if double and cpu and elements < _SMALL:
        return _double_sum(form, *(x[None] for x in flat))
    rows = [x[:whole].view(-1, row) for x in flat]
    tail = _double_sum(form, *(x[None, whole:] for x in flat))
    return tail + (_double_sum(form, *rows) if double else _single_sum(form, *rows))


def _double_sum(form: _Form, *rows: Tensor) -> Tensor:
    """The sum in float64 throughout, block by block to bound the memory."""
    block = _BLOCK if rows[0].device.type == "cpu" else _DEVICE_BLOCK
    total = torch.zeros((), dtype=torch.float64, device=rows[0].device)
    for part in _blocks(block, *rows):
        total += form.sums(*(x.double() for x in part)).sum()
    return total


def _single_sum(form: _Form, *rows: Tensor) -> Tensor:
    """The sum with rows in float32 and everything above them in float64 (CPU only)."""
    whole = not form.needs_temporary and rows[0].dtype == torch.float32
    block = rows[0].numel() if whole else _BLOCK
    parts = [form.sums(*(x.float() for x in part)) for part in _blocks(block, *rows)]
    sums = torch.cat(parts)
    suspect = _suspect(sums)
    if suspect is None:
        return sums.sum()
    again = [x[suspect] for x in rows]
    return sums[~suspect].sum() + _double_sum(form, *again)


def _suspect(sums: Tensor) -> Tensor | None:
    """Which rows float32 cannot be trusted with, or None."""
    size = sums.abs()
    low, high = _TRUSTED
    # Repeats of the last row fill the last group.
    filled = torch.cat((size, size[-1:].expand(-len(size) % _GROUP)))
    least, most = torch.aminmax(filled.view(-1, _GROUP), dim=1)
    alike = most - least < _ALIKE * most
    if bool(least.min() > low) and bool(most.max() < high) and not bool(alike.any()):
        return None
    trusted = (size > low) & (size < high)  # NaN is neither
    return ~trusted | alike.repeat_interleave(_GROUP)[: len(size)]


def _blocks(elements: int, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    count = max(1, elements // max(1, rows[0].shape[-1]))
    return zip(*(x.split(count) for x in rows), strict=True)


def _flattened(*operands: Tensor) -> tuple[Tensor, ...]:
    """The operands in one dimension, element beside element; no copy where memory order allows."""
    strides = operands[0].stride()
    if all(x.stride() == strides for x in operands):
        order = sorted(range(len(strides)), key=lambda i: -strides[i])
        operands = tuple(x.permute(order) for x in operands)
    return tuple(x.reshape(-1) for x in operands)


# Many tensors, on many ranks ---------------------------------------------------------------------

# The mesh, and for each of its dimensions whether the ranks along it hold different elements.
_Layout = tuple[DeviceMesh, tuple[bool, ...]] | None


@torch.no_grad()
def _reduced(form: _Form, *operands: Tensors) -> Tensor:
    """The form's sum over all entries and all ranks; one collective a layout, not one a tensor."""
    totals: dict[_Layout, Tensor] = {}
    entries = _entries(*operands)
    if form is _SQUARES:
        entries, together = _together(entries)
        if together is not None:
            totals[None] = together
    for entry in entries:
        layout, local = _on_this_rank(*entry)
        part = _local_sum(form, *local)
        before = totals.get(layout)
        totals[layout] = part if before is None else before + part.to(before.device)
    results = [_over_ranks(layout, total) for layout, total in totals.items()]
    if not results:
        return torch.zeros((), dtype=torch.float64)
    return sum((x.to(results[0].device) for x in results[1:]), start=results[0])


def _together(entries: list[tuple[Tensor, ...]]) -> tuple[list[tuple[Tensor, ...]], Tensor | None]:
    """Σ‖x‖² of the plain float32 tensors of middling size, and the entries that are left.

    A model has dozens of them, and a call a tensor would cost more than the sums. Groups of rows
    lie within one tensor, so each is judged as it would be alone.
    """
    chosen = [_is_middling(entry[0]) for entry in entries]
    if sum(chosen) < 2:
        return entries, None
    flat = [_flattened(entry[0])[0] for entry, mine in zip(entries, chosen, strict=True) if mine]
    whole = [len(x) // (_GROUP * _SHORT_ROW) * (_GROUP * _SHORT_ROW) for x in flat]
    norms = [
        torch.linalg.vector_norm(x[:end].view(-1, _SHORT_ROW), dim=-1)
        for x, end in zip(flat, whole, strict=True)
    ]
    sums = torch.cat(norms).double().square()
    if _suspect(sums) is not None:
        return entries, None
    rest = torch.cat([x[end:] for x, end in zip(flat, whole, strict=True)]).double()
    left = [entry for entry, mine in zip(entries, chosen, strict=True) if not mine]
    return left, sums.sum() + rest.square().sum()


def _is_middling(x: Tensor) -> bool:
    """Whether it is reduced by short rows of float32."""
    plain = not isinstance(x, DTensor) and x.device.type == "cpu" and x.dtype == torch.float32
    return plain and _SMALL <= x.numel() < _LARGE


def _entries(*operands: Tensors) -> list[tuple[Tensor, ...]]:
    """The operands' tensors entry by entry, after the checks that they belong together."""
    mappings = [{"": x} if isinstance(x, Tensor) else x for x in operands]
    names = mappings[0].keys()
    for other in mappings[1:]:
        if other.keys() != names:
            odd = sorted(names ^ other.keys())[0]
            raise ModelError(
                f"entry '{odd}' on one side only",
                expected="the same names on both sides",
                do="select the same parameters from both",
            )
    return [_checked(name, *(x[name].detach() for x in mappings)) for name in names]


def _checked(name: str, *entry: Tensor) -> tuple[Tensor, ...]:
    what = f"tensor '{name}'" if name else "a tensor"
    for x in entry:
        if not x.dtype.is_floating_point or x.layout != torch.strided:
            raise ModelError(
                f"{what} of {x.dtype}, {x.layout}",
                expected="a dense tensor of a floating dtype",
                do="convert it first",
            )
    if len({x.shape for x in entry}) > 1:
        raise ModelError(
            f"{what} of shapes {' and '.join(str(tuple(x.shape)) for x in entry)}",
            expected="one shape",
            do="compare a parameter with itself at another time",
        )
    return entry


def _on_this_rank(*entry: Tensor) -> tuple[_Layout, tuple[Tensor, ...]]:
    """The local tensors and how they lie on the mesh; all operands laid out as the first."""
    sharded = [x for x in entry if isinstance(x, DTensor)]
    if not sharded:
        return None, entry
    mesh = sharded[0].device_mesh
    if len(sharded) < len(entry) or any(x.device_mesh != mesh for x in sharded):
        raise ModelError(
            "a sharded tensor beside one that is not, or is on another mesh",
            expected="both sharded over the same mesh",
            do="distribute both alike, or gather both with full_tensor()",
        )
    # A partial sum has no norm of its own before it is summed.
    placements = [Replicate() if p.is_partial() else p for p in sharded[0].placements]
    local = tuple(x.redistribute(mesh, placements).to_local() for x in sharded)
    return (mesh, tuple(not p.is_replicate() for p in placements)), local


def _over_ranks(layout: _Layout, total: Tensor) -> Tensor:
    """The sum over those ranks that hold different elements."""
    if layout is None or not any(layout[1]):
        return total
    mesh, differs = layout
    placements = [Partial() if each else Replicate() for each in differs]
    return DTensor.from_local(total, mesh, placements, run_check=False).full_tensor()
