"""Sums of single parameters → records of groups: in total, by layer, by role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from orderone.core.record import Record
from orderone.core.selection import Grouping, grouped
from orderone.probes.step import geometry, rounding_squares

GROUPINGS: tuple[Grouping, ...] = ("total", "layer", "role")
_UNTRUSTED = 0.1  # of ‖δ‖: so much of it may be rounding before it is said


class Groups:
    """Groups of parameters, and what has been summed over the steps seen so far."""

    def __init__(
        self,
        names: Sequence[str],
        dtypes: Sequence[torch.dtype],
        squared_norms: Float64[Tensor, "tensors"],
        *,
        every: int,
    ) -> None:
        self._labels: list[dict[str, str]] = []
        rows: list[list[int]] = []
        position = {name: index for index, name in enumerate(names)}
        for by in GROUPINGS:
            for group, members in grouped(names, by).items():
                self._labels.append({"by": by, "group": group})
                rows.append([position[name] for name in members])
        self._owner = torch.tensor([g for g, row in enumerate(rows) for _ in row])
        self._member = torch.tensor([index for row in rows for index in row])
        self._dtypes = tuple(dtypes)
        self._every = every
        self._seen = "every step" if every == 1 else f"each of 1 in {every}, for all"
        start = self._grouped(squared_norms.cpu()[None])[0]
        self._misaligned = start.clone()
        self._aligned = start.sqrt()

    def records(self, step: int, sums: Float64[Tensor, "6 tensors"]) -> Iterator[Record]:
        """Records of one step: the four sums of ``step_sums``, ‖g‖² before and after clipping.

        To be asked in the order of the steps: the sums over steps grow with every call.
        """
        noise = rounding_squares(sums[0], self._dtypes)
        grouped_sums = self._grouped(torch.cat((sums, noise[None])))
        path = geometry(grouped_sums[:4])
        self._misaligned += self._every * grouped_sums[2]
        self._aligned += self._every * path.step_norm
        before, after = grouped_sums[4:6].sqrt().tolist()
        yield from self._each(step, path._asdict())
        for when, norms in (("before", before), ("after", after)):
            yield from self._present(step, f"gradient_norm_{when}_clipping", norms)
        predicted = {
            "norm_if_misaligned": self._misaligned.sqrt(),
            "norm_if_aligned": self._aligned,
        }
        yield from self._each(step, predicted, steps=self._seen)
        # Of 0/0, a step of nothing in a wide dtype, nothing is to be said.
        for labels, share in zip(
            self._labels, (grouped_sums[6] / grouped_sums[2]).sqrt().tolist(), strict=True
        ):
            if share > _UNTRUSTED:
                yield Record(step, "step_untrusted", share, labels)

    def _each(self, step: int, values: dict[str, Tensor], **more: str) -> Iterator[Record]:
        for name, of_groups in values.items():
            for labels, value in zip(self._labels, of_groups.tolist(), strict=True):
                yield Record(step, name, value, {**labels, **more})

    def _present(self, step: int, name: str, values: Sequence[float]) -> Iterator[Record]:
        """Not the groups that nothing was seen of: NaN of all, where one parameter's is NaN."""
        if all(value != value for value in values):
            return
        for labels, value in zip(self._labels, values, strict=True):
            yield Record(step, name, value, labels)

    def _grouped(self, sums: Float64[Tensor, "q tensors"]) -> Float64[Tensor, "q groups"]:
        # Added, not multiplied by a matrix of zeros and ones: one layer's NaN stays its own.
        groups = torch.zeros(len(sums), len(self._labels), dtype=torch.float64)
        return groups.index_add_(1, self._owner, sums[:, self._member])
