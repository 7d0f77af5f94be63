"""What the geometry asks of a checkpoint, whatever its format."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.findings import Finding


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Shape and stored dtype of a tensor, known without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@runtime_checkable
class Checkpoint(Protocol):
    """The weights of one moment of a run.

    ``tensors`` and ``read`` raise ``UnreadableError``, which becomes a finding. A tensor that
    ``read`` returned stays valid after ``close``; it may be a view of the file, never written to.
    """

    @property
    def step(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def stamp(self) -> str:
        """Another one when its files were written anew; empty where that is not known."""
        ...

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Weights by clean name, sorted; tied tensors once; no optimizer state."""
        ...

    def read(self, name: str, start: int, stop: int) -> Shaped[Tensor, " n"]:
        """Elements start..stop of the flat tensor in its stored dtype, without a copy if it can."""
        ...

    def expect(self, name: str, start: int, stop: int) -> None:
        """These elements are read next: what is far away may be fetched meanwhile."""
        ...

    def release(self, name: str, start: int, stop: int) -> None:
        """These elements are not needed again: their pages leave this process's memory."""
        ...

    def close(self) -> None:
        """Give files back; a later ``read`` opens them again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Series:
    """Checkpoints by step, what was wrong with the files, and what was matched or skipped."""

    checkpoints: tuple[Checkpoint, ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
