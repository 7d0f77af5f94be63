"""What attention heads look at: in the saturated network positions are counted, [MRGSS21] §4.3.

At a large c nearly every head attends to one position, since a mean needs exact ties; mean-like
heads are found in the network as it is, by the entropy of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.core.selection import Selection
from orderone.probes.attended import Rows, Tally
from orderone.probes.feeding import Feed, as_deployed, feed, unwrapped
from orderone.probes.places import Places
from orderone.probes.scaled import ScaleOverflowError, Scaling, in_wider_type
from orderone.probes.weights import attention_weights

MOST = 0.9
"""Share of rows, or of the legal positions, from which on a head is called by what it does."""


@dataclass(frozen=True, kw_only=True)
class HeadLook:
    """One head. Shares are of rows with two legal positions or more; None where there are none."""

    layer: str
    head: int
    saturated_positions: float
    """Weights above 1e-5 in a row of the saturated network, mean over rows."""
    legal: float
    future: float
    pad: float
    """The same split; the last two are 0 unless the mask is the original code's."""
    single: float | None
    whole_prefix: float | None
    whole_future: float | None
    between: float | None
    distance: float | None
    """|t − t'| of rows that look at one t', mean."""
    before: float | None
    itself: float | None
    after: float | None
    first: float | None
    """Share of single rows, the first token's aside, that look at the first token: a sink."""
    entropy: float
    """At c = 1, in nats; mean over rows."""
    effective_positions: float
    """e^entropy at c = 1, mean over rows."""
    legal_positions: float
    """That it may look at, mean over rows."""
    spread: float | None
    """Effective over legal positions at c = 1, mean over rows with two or more."""

    @property
    def kind(self) -> str:
        """What the saturated head does; one that is a mean only at c = 1 is called so."""
        if self.single is None or self.whole_prefix is None or self.spread is None:
            return "one position"
        if (self.whole_future or 0.0) >= MOST:
            return "future mean"
        if self.whole_prefix >= MOST:
            return "mean"
        if self.single < MOST:
            return "between"
        if self.spread >= MOST:
            return "mean at c = 1"
        return "first token" if (self.first or 0.0) >= MOST else "arg max"


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Every head, in the order in which attention runs."""

    c: float
    heads: tuple[HeadLook, ...]
    sentences: int
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> list[str]:
        """Findings in words."""
        kinds: dict[str, int] = {}
        for each in self.heads:
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
        mean = sum(each.saturated_positions for each in self.heads) / len(self.heads)
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        said = [
            f"{len(self.heads)} heads: {counts}.",
            f"Saturated, a head attends to {mean:.2f} positions on average.",
        ]
        leaking = sum(each.future + each.pad > 0 for each in self.heads)
        if leaking:
            said.append(f"{leaking} heads look at future or padded positions: the mask leaks.")
        return [*said, *self.notes]


def heads(
    model: nn.Module,
    batches: Iterable[object],
    *,
    c: float = 1024.0,
    selection: Selection | None = None,
    as_coded: bool = False,
) -> Heads:
    """Positions attended by each head at c and at 1, on the real tokens of ``batches``.

    Weights on padding, or on the future of an attention that is causal, raise ModelError. But for
    ``mask="zero"`` of our language models, the bug of the original code of [MRGSS21]: there they
    are counted and told apart. With ``as_coded`` padding is not masked either, and its rows count.
    """
    given = list(batches)
    model, notes = unwrapped(model), list[str]()
    zero = getattr(getattr(model, "config", None), "mask", None) == "zero"
    if as_coded and not zero:
        raise ConfigError(
            "as_coded for a model whose mask is true",
            expected='a language model of ours with mask="zero"',
            do="leave as_coded out",
        )
    while True:
        try:
            found = _Looks(model, leaks=zero, as_coded=as_coded).over(given, c, selection)
            return replace(found, notes=tuple(notes))
        except ScaleOverflowError as error:
            model, note = in_wider_type(model, error)
            notes.append(note)


def upper_mode(T: int) -> float:
    """Mean positions of a head that looks at all its future evenly, and at one in its last row.

    (T(T−1)/2 + 1)/T = (T−1)/2 + 1/T: the upper mode of [MRGSS21] Fig. 3, whose mask leaked. A
    mean over the past would give (T+1)/2.
    """
    return (T - 1) / 2 + 1 / T


class _Looks:
    """All batches at c = 1, which shows what each attention may look at; then all at c."""

    def __init__(self, model: nn.Module, *, leaks: bool, as_coded: bool) -> None:
        self.model, self.leaks, self.as_coded = model, leaks, as_coded
        self.places = Places(model)
        self.tallies: dict[str, Tally] = {}
        self.sentences = 0

    def over(self, batches: list[object], c: float, selection: Selection | None) -> Heads:
        with as_deployed(self.model):
            scaling = Scaling(self.model, c, selection=selection)
            for batch in batches:
                self.sentences += feed(self.model, batch).sentences
                self._pass(batch, saturated=False)
            if not batches:
                raise DataError("no batch of text", expected="at least one", do="give text")
            if not self.tallies:
                raise ModelError(
                    f"no attention in a {type(self.model).__name__}",
                    expected="attention by softmax over (batch, heads, queries, keys)",
                    do="give a transformer; one with custom kernels needs attention 'eager'",
                )
            self._settle()
            with scaling:
                for batch in batches:
                    self._pass(batch, saturated=True)
        return Heads(
            c=c,
            heads=tuple(
                HeadLook(layer=name, head=head, **tally.of(head))
                for name, tally in self.tallies.items()
                for head in range(tally.heads)
            ),
            sentences=self.sentences,
        )

    def _pass(self, batch: object, *, saturated: bool) -> None:
        given = feed(self.model, batch)
        seen: dict[str, int] = {}
        failures: list[Exception] = []

        def keep(path: str, Omega: Any) -> None:
            place = self.places.at(path)
            seen[place.label] = seen.get(place.label, 0) + 1
            times = seen[place.label]
            label = place.label if times == 1 else f"{place.label} ({times})"
            tally = self.tallies.setdefault(label, Tally(label=label, leaks=self.leaks))
            rows = Rows.of(Omega, given, place, as_coded=self.as_coded)
            try:
                tally.add(rows, saturated=saturated)
            except (ModelError, ScaleOverflowError) as error:
                # Raised once the pass is over: a sharded model must not stop in the middle.
                failures.append(error)

        arguments = self._arguments(given)
        with attention_weights(self.model, keep):
            self.model(*given.arguments, **arguments)
        if failures:
            raise failures[0]

    def _arguments(self, given: Feed) -> dict[str, Any]:
        left = ("real",) if self.as_coded else ()
        return {name: value for name, value in given.keywords.items() if name not in left}

    def _settle(self) -> None:
        for label, tally in self.tallies.items():
            tally.settle(claimed=self.places.is_causal(label) and not self.leaks)
