"""Rows of attention counted: positions above 1e-5, [MRGSS21] §4.3, legal ones apart from others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orderone.core.errors import ModelError
from orderone.probes.feeding import Feed
from orderone.probes.places import Place
from orderone.probes.scaled import ScaleOverflowError

THRESHOLD = 1e-5
EVEN = 1e-3
"""Relative difference from 1/count up to which the weights of a row are even."""
NONE = 1e-30
"""Weight up to which a position is masked, be it by a large negative score instead of −∞."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Ω of one attention, and which of its queries and keys are real."""

    Omega: Float[Tensor, "b h q k"]
    counted: Bool[Tensor, "b q"]
    """Queries whose rows count."""
    keys: Bool[Tensor, "b k"]
    """Real ones."""
    seen: Bool[Tensor, "b k"]
    """Those, or all of them where padding is a word like others."""
    future: Bool[Tensor, "q k"]
    """Keys after the query; none where queries and keys are of different stacks."""

    @classmethod
    def of(cls, Omega: Tensor, given: Feed, place: Place, *, as_coded: bool) -> Rows:
        b, _, q, k = Omega.shape
        queries = _fitted(given.of_tower(place.tower), b, q, Omega.device)
        keys_of = given.source_real if place.cross else given.of_tower(place.tower)
        keys = _fitted(keys_of, b, k, Omega.device)
        ahead = torch.ones(q, k, dtype=torch.bool, device=Omega.device).triu(1)
        future = ahead & (q == k and not place.cross)
        counted = torch.ones_like(queries) if as_coded else queries
        seen = torch.ones_like(keys) if as_coded else keys
        return cls(Omega=Omega, counted=counted, keys=keys, seen=seen, future=future)

    def legal(self, *, causal: bool) -> Bool[Tensor, "b 1 q k"]:
        hidden = self.future if causal else torch.zeros_like(self.future)
        return self.keys[:, None, None, :] & ~hidden

    def of_counted(self, x: Tensor) -> Tensor:
        """(b, h, q, …) → (rows, h, …)."""
        return x.transpose(1, 2)[self.counted]


def _fitted(
    real: Bool[Tensor, "b t"] | None, b: int, t: int, device: torch.device
) -> Bool[Tensor, "b t"]:
    """The mask, or all of them where nothing is padded: windows of images have another shape."""
    if real is not None and real.shape == (b, t):
        return real
    if real is None or bool(real.all()):
        return torch.ones(b, t, dtype=torch.bool, device=device)
    raise ModelError(
        f"attention over {t} positions in {b} rows for a mask of {tuple(real.shape)}",
        expected="one position a token",
        do="give batches without padding",
    )


def _sums() -> dict[str, Float[Tensor, "h"]]:
    return {}


@dataclass(kw_only=True)
class Tally:
    """Running sums of one attention, for all its heads at once."""

    label: str
    leaks: bool
    """The mask is known to leak: what is illegal counts, and is told apart."""
    heads: int = 0
    future_seen: float = 0.0
    causal: bool = False
    sums: dict[str, Float[Tensor, "h"]] = field(default_factory=_sums)

    def add(self, rows: Rows, *, saturated: bool) -> None:
        self.heads = rows.Omega.shape[1]
        finite = rows.of_counted(rows.Omega).isfinite().all()
        if not bool(finite):
            raise ScaleOverflowError(
                f"attention weights that are no numbers at layer {self.label}",
                expected="finite numbers",
                do="take a smaller c or a wider type",
            )
        if saturated:
            self._add_saturated(rows)
        else:
            self._add_plain(rows)

    def settle(self, *, claimed: bool) -> None:
        """After all rows at c = 1: no weight on any future means that the mask is causal."""
        self.causal = self.leaks or claimed or self.future_seen <= NONE
        if claimed and self.future_seen > THRESHOLD:
            raise self._leak("a future position", self.future_seen)

    def of(self, head: int) -> dict[str, Any]:
        """Means of one head, by the names of HeadLook."""
        total = {name: float(each[head]) for name, each in self.sums.items()}
        rows, wide, single = total["rows"], total["wide"], total["single"]
        looking = total["single away from first"]
        spread = "spread causal" if self.causal else "spread all"
        choices = "wide causal" if self.causal else "wide all"
        return {
            "saturated_positions": total["count"] / rows,
            **{name: total[name] / rows for name in ("legal", "future", "pad")},
            **{name: _share(total[name], wide) for name in ("single", "whole_prefix")},
            "whole_future": _share(total["whole_future"], wide) if self.leaks else None,
            "between": _share(
                wide - single - total["whole_prefix"] - self.leaks * total["whole_future"], wide
            ),
            **{n: _share(total[n], single) for n in ("distance", "before", "itself", "after")},
            "first": _share(total["first"], looking),
            "entropy": total["entropy"] / total["plain rows"],
            "effective_positions": total["effective"] / total["plain rows"],
            "legal_positions": total["legal keys"] / rows,
            "spread": _share(total[spread], total[choices]),
        }

    def _add_plain(self, rows: Rows) -> None:
        Omega = rows.of_counted(rows.Omega).double()
        shape = rows.Omega.shape
        self._refuse_pads(rows)
        self.future_seen = max(self.future_seen, _largest(rows, rows.future.expand(shape)))
        entropy = torch.special.entr(Omega).sum(dim=-1)
        self._sum("plain rows", torch.ones_like(entropy))
        self._sum("entropy", entropy)
        self._sum("effective", entropy.exp())
        # Whether the mask is causal is known once all rows were seen: kept both ways.
        for name, causal in (("causal", True), ("all", False)):
            count = self._legal_count(rows, causal=causal)
            wide = (count >= 2).expand_as(entropy)
            self._sum(f"wide {name}", wide)
            self._sum(f"spread {name}", entropy.exp() / count.clamp(min=1) * wide)

    def _add_saturated(self, rows: Rows) -> None:
        legal = rows.legal(causal=self.causal)
        attended = rows.Omega > THRESHOLD
        if not self.leaks:
            self._refuse_pads(rows)
            future = rows.future.expand(rows.Omega.shape)
            if self.causal and (most := _largest(rows, future)) > THRESHOLD:
                raise self._leak("a future position", most)
        pad = ~rows.keys[:, None, None, :]
        masks = {"legal": legal, "future": rows.future & ~pad, "pad": pad}
        for name, mask in masks.items():
            each = rows.of_counted((attended & mask).sum(dim=-1))
            self._sum(name, each if name == "legal" or self.leaks else torch.zeros_like(each))
        self._add_shapes(rows, attended if self.leaks else attended & legal, legal)

    def _add_shapes(self, rows: Rows, attended: Tensor, legal: Tensor) -> None:
        count = rows.of_counted(attended.sum(dim=-1))
        keys = self._legal_count(rows, causal=self.causal)
        wide = (keys >= 2).expand_as(count)
        if self.leaks:  # its first row has one legal position, and a future
            wide = torch.ones_like(wide)
        single = (count == 1) & wide
        self._sum("rows", torch.ones_like(count))
        self._sum("count", count)
        self._sum("legal keys", keys.expand_as(count))
        self._sum("wide", wide)
        self._sum("single", single)
        prefix = self._evenly(rows, attended, legal.expand_as(attended))
        self._sum("whole_prefix", prefix & wide & ~single)
        future = rows.future.expand_as(attended) & rows.seen[:, None, None, :]
        self._sum("whole_future", self._evenly(rows, attended, future) & wide & ~single)
        self._add_picks(rows, attended, single)

    def _add_picks(self, rows: Rows, attended: Tensor, single: Bool[Tensor, "rows h"]) -> None:
        """Where rows that look at one position look."""
        pick = rows.of_counted(attended.int().argmax(dim=-1))
        b, _, q, _ = attended.shape
        t = torch.arange(q, device=pick.device).expand(b, q)[rows.counted][:, None]
        ahead = pick - t
        self._sum("distance", ahead.abs() * single)
        self._sum("before", (ahead < 0) & single)
        self._sum("itself", (ahead == 0) & single)
        self._sum("after", (ahead > 0) & single)
        self._sum("single away from first", single & (t > 0))
        self._sum("first", single & (t > 0) & (pick == 0))

    def _evenly(self, rows: Rows, attended: Tensor, wanted: Tensor) -> Bool[Tensor, "rows h"]:
        """Rows that attend to exactly the wanted positions, each with the same weight."""
        share = 1 / wanted.sum(dim=-1, keepdim=True).clamp(min=1)
        even = ((rows.Omega - share).abs() <= EVEN * share) | ~wanted
        exactly = (attended == wanted).all(dim=-1) & wanted.any(dim=-1)
        return rows.of_counted(exactly & even.all(dim=-1))

    def _legal_count(self, rows: Rows, *, causal: bool) -> Int[Tensor, "rows 1"]:
        return rows.of_counted(rows.legal(causal=causal).sum(dim=-1))

    def _refuse_pads(self, rows: Rows) -> None:
        if not self.leaks:
            pad = (~rows.keys)[:, None, None, :].expand(rows.Omega.shape)
            if (most := _largest(rows, pad)) > THRESHOLD:
                raise self._leak("padding", most)

    def _leak(self, what: str, weight: float) -> ModelError:
        return ModelError(
            f"weight {weight:.2g} on {what} at layer {self.label}",
            expected="none: the mask forbids it",
            do="correct the model's mask, or compute in float32, where masks outweigh scores",
        )

    def _sum(self, name: str, each: Tensor) -> None:
        total = each.double().sum(dim=0).cpu()
        self.sums[name] = self.sums[name] + total if name in self.sums else total


def _largest(rows: Rows, where: Tensor) -> float:
    """The largest weight of a row that counts, among some positions."""
    found = rows.of_counted(rows.Omega.masked_fill(~where, 0.0))
    return float(found.max()) if found.numel() else 0.0


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
