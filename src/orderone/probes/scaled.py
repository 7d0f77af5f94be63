"""cθ in place of θ, for a while: exact to the bit afterwards, and without a copy where c = 2^k.

[MRGSS21] Def. 1 takes f(x; cθ) with every parameter scaled. A power of two only moves a float's
exponent, so scaling and scaling back are exact unless the exponent leaves its range; that is
looked for first, and such tensors are kept as a copy or, where cθ is no number at all, refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from orderone.core.errors import ConfigError, ModelError
from orderone.core.parameter_names import clean_name
from orderone.core.selection import Selection, selected
from orderone.probes.shards import over_ranks

_CHUNK = 1 << 20
"""Elements looked at together: what a check takes beside the model is a few megabytes."""

_KNOWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
}


class ScaleOverflowError(ModelError):
    """cθ, or what a network computes with it, leaves the range of the numbers it is held in."""


@contextmanager
def scaled(
    model: nn.Module, c: float = 1024.0, *, selection: Selection | None = None
) -> Generator[None]:
    """Within it the selected parameters (all, unless told) are cθ; afterwards θ, bit for bit.

    Also when the block raises, and for parameters that FSDP2 shards. Tied parameters, and others
    that share their memory, are scaled once.
    """
    with Scaling(model, c, selection=selection):
        yield


class Scaling:
    """θ ↔ cθ as often as wanted, with the checks made once: ``with scaling: …``.

    The parameters must not be changed by others in between.
    """

    def __init__(
        self, model: nn.Module, c: float = 1024.0, *, selection: Selection | None = None
    ) -> None:
        if not (math.isfinite(c) and c > 0):
            raise ConfigError(f"c = {c}", expected="a positive number", do="take 1024")
        self.model, self.c = model, c
        _free_gathered(model)
        self._parts = _parts(model, selection)
        self._copied = self._to_copy()
        self._undo: list[tuple[Tensor, Tensor | None]] = []

    def __enter__(self) -> None:
        _free_gathered(self.model)
        try:
            for part, copied in zip(self._parts, self._copied, strict=True):
                self._scale(part, copied=copied)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_: object) -> None:
        self._restore()

    @torch.no_grad()
    def _scale(self, part: _Part, *, copied: bool) -> None:
        values = part.values()
        kept = values.clone() if copied else None
        self._undo.append((values, kept))
        values.mul_(self.c)

    @torch.no_grad()
    def _restore(self) -> None:
        # What FSDP2 gathered for the forward pass is made of cθ: it must not be used again.
        _free_gathered(self.model)
        while self._undo:
            values, kept = self._undo.pop()
            if kept is None:
                values.mul_(1 / self.c)
            else:
                values.copy_(kept)

    def _to_copy(self) -> list[bool]:
        """Which parts do not come back by themselves; what is no number before or after raises."""
        counts = torch.zeros(3, len(self._parts), dtype=torch.float64)
        for index, part in enumerate(self._parts):
            counts[:, index] = torch.tensor(_survey(part.values(), self.c), dtype=torch.float64)
        # Every rank must come to the same decision, or one would wait for the others forever.
        counts = over_ranks(counts, [part.parameter for part in self._parts])
        for part, (broken, overflowing, _) in zip(self._parts, counts.T.tolist(), strict=True):
            if broken:
                raise ModelError(
                    f"parameter '{part.name}' with NaN or infinite entries",
                    expected="finite numbers",
                    do="load weights that are whole",
                )
            if overflowing:
                raise ScaleOverflowError(
                    f"parameter '{part.name}' times c = {self.c:g} beyond {_short(part.dtype)}",
                    expected=f"numbers up to {torch.finfo(part.dtype).max:.3g}",
                    do="take a smaller c, or the model in bfloat16 or float32",
                )
        return [bool(inexact) for inexact in counts[2].tolist()]


def in_wider_type(model: nn.Module, error: ScaleOverflowError) -> tuple[nn.Module, str]:
    """A copy in the next type; errors where there is none, and for sharded models."""
    narrowest = min(
        (p.dtype for p in model.parameters() if p.is_floating_point()),
        key=lambda dtype: torch.finfo(dtype).max,
    )
    wider = _WIDER.get(narrowest)
    if wider is None:
        raise error
    if any(isinstance(p, DTensor) for p in model.parameters()):
        raise ModelError(
            f"{error.found}, in a sharded model",
            expected="a type wide enough",
            do="convert the model before it is sharded",
        ) from error
    name = str(wider).removeprefix("torch.")
    note = f"{error.found[0].upper()}{error.found[1:]}: computed again in {name}, from a copy."
    return copy.deepcopy(model).to(wider), note


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A parameter, looked up anew each time: FSDP2 exchanges the tensors behind it."""

    name: str
    parameter: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    def values(self) -> Tensor:
        """This rank's elements, sharing the parameter's memory but not its version counter:
        a graph that autograd holds stays valid, since every bit comes back."""
        data = self.parameter.data
        with torch.no_grad():
            return data.to_local() if isinstance(data, DTensor) else data


def _parts(model: nn.Module, selection: Selection | None) -> list[_Part]:
    everything = Selection(embeddings=True, scalars=True)
    found: list[_Part] = []
    seen: set[tuple[object, ...]] = set()
    for name, parameter in selected(model, selection or everything).items():
        if not (parameter.is_floating_point() and parameter.numel()):
            continue
        _refuse_unknown(name, parameter)
        values = _Part(name=name, parameter=parameter).values()
        memory = (values.untyped_storage().data_ptr(), values.storage_offset(), values.shape)
        # A shard may be empty; all of these lie at one address.
        if values.numel() and memory in seen:
            continue
        seen.add(memory)
        found.append(_Part(name=name, parameter=parameter))
    if not found:
        raise ModelError("a model without parameters to scale", expected="some", do="select others")
    return found


def _refuse_unknown(name: str, parameter: Tensor) -> None:
    if parameter.is_meta:
        raise ModelError(
            f"parameter '{clean_name(name)}' without memory",
            expected="a model with weights",
            do="build it on a device other than meta",
        )
    if parameter.dtype not in _KNOWN:
        raise ModelError(
            f"parameter '{clean_name(name)}' in {_short(parameter.dtype)}",
            expected=", ".join(map(_short, _KNOWN)),
            do="convert the model, for example by model.float()",
        )


def _survey(values: Tensor, c: float) -> tuple[int, int, int]:
    """Whether any element is no number, has no cθ, or does not come back from it exactly."""
    if not values.numel():
        return 0, 0, 0
    exact = _is_power_of_two(c)
    by_size = exact and c >= 1 and _subnormals_survive(values, c)
    largest, comes_back = 0.0, exact
    for chunk in _chunks(values):
        least, most = (float(each) for each in chunk.aminmax())
        size = max(-least, most)
        if not math.isfinite(size):
            return 1, 0, 0
        largest = max(largest, size)
        if exact and not by_size and comes_back:
            comes_back = _same_bits(chunk * c * (1 / c), chunk)
    return 0, int(largest * c > torch.finfo(values.dtype).max), int(not comes_back)


def _is_power_of_two(c: float) -> bool:
    return math.frexp(c)[0] == 0.5


def _subnormals_survive(like: Tensor, c: float) -> bool:
    """Whether this device keeps the smallest numbers of the type instead of flushing them to 0."""
    smallest = torch.finfo(like.dtype).smallest_normal * torch.finfo(like.dtype).eps
    probe = torch.tensor([smallest], dtype=torch.float64).to(like)
    return bool(probe) and _same_bits(probe * c * (1 / c), probe)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """A processor that flushes subnormals also takes them for 0 when it compares."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def _chunks(values: Tensor) -> Sequence[Tensor]:
    if values.is_contiguous():
        return values.view(-1).split(_CHUNK)
    rows = max(1, _CHUNK * len(values) // values.numel()) if values.ndim else 1
    return values.split(rows) if values.ndim else [values]


def _free_gathered(model: nn.Module) -> None:
    """Every parameter that FSDP2 gathered for a forward pass is let go, the root's too.

    ``reshard`` leaves those of a pass that raised; the state dict's own hook does not.
    """
    if any(kind.__name__ == "FSDPModule" for m in model.modules() for kind in type(m).__mro__):
        model.state_dict()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
