"""NaN and infinite weights: how many, and where the first is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.findings import Finding


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """Counts over the chunks of one tensor, and the flat index of the first such element."""

    nan: int
    infinite: int
    first: int

    def __add__(self, other: "NonFinite") -> "NonFinite":
        return NonFinite(
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            first=min(self.first, other.first),
        )

    def finding(self, checkpoint: str, name: str, shape: Sequence[int]) -> Finding:
        """'2 NaN, 1 infinite in NAME, the first at [3, 0]'."""
        counts = [f"{self.nan} NaN"] * bool(self.nan)
        counts += [f"{self.infinite} infinite"] * bool(self.infinite)
        place = [int(i) for i in torch.unravel_index(torch.tensor(self.first), tuple(shape))]
        detail = f"{', '.join(counts)} in '{name}', the first at {place}"
        return Finding(checkpoint=checkpoint, kind="non-finite", detail=detail)


def non_finite(chunk: Shaped[Tensor, " n"], start: int = 0) -> NonFinite | None:
    """What is not finite among a tensor's elements from flat index ``start`` on."""
    if chunk.dtype.itemsize == 1:
        chunk = chunk.float()  # comparisons are not made for fp8
    bad = ~torch.isfinite(chunk)
    if not bad.any():
        return None
    nan = int(torch.isnan(chunk).sum())
    first = start + int(bad.nonzero()[0])
    return NonFinite(nan=nan, infinite=int(bad.sum()) - nan, first=first)
