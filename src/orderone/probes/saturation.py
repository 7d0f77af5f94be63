"""Saturation: how close a network is to what is left of it when its norm grows, by layer.

[MRGSS21] Def. 1, §4.1: sf(x; θ) = lim f(x; cθ), in practice at a large c; the level of saturation
is the cosine of the two, averaged over the real tokens of some sentences, beside its controls.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, DataError
from orderone.core.outputs import main_tensor
from orderone.core.selection import Selection
from orderone.probes.alike import Alike
from orderone.probes.feeding import Feed, as_deployed, feed, unwrapped
from orderone.probes.hidden import hidden_states, is_time_first, real_rows
from orderone.probes.scaled import ScaleOverflowError, Scaling, in_wider_type

ALIKE = 0.99
"""Above it two tokens of one network are taken for the same, and a cosine says nothing."""

Into = Callable[[], AbstractContextManager[object]]
"""Within what it gives a model is its saturated network; called for every batch."""

Limit = Callable[[nn.Module], Into]
"""The way there, made once for each model."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Saturation of one layer, with its controls; None where there are too few tokens."""

    layer: str
    cosine: float
    se: float | None
    other: float | None
    cross: float | None
    centred: float | None
    other_saturated: float | None
    by_token: dict[int, tuple[int, float]] = field(
        default_factory=dict[int, tuple[int, float]], repr=False
    )
    """Count and mean cosine of each token, where asked for."""

    @property
    def says_nothing(self) -> bool:
        """Whether two other tokens are as good as the same: a cosine of 1 is then no finding."""
        return max(self.other or 0.0, self.other_saturated or 0.0) > ALIKE

    @property
    def at_chance(self) -> bool:
        """Whether the cosine is that of two tokens, one in each network, within two errors."""
        return self.cross is not None and self.cosine - self.cross <= max(0.01, 2 * (self.se or 0))


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Saturation by layer, and what it is to be held against."""

    c: float
    layers: tuple[Level, ...]
    random: tuple[Level, ...] | None
    """Of random initialisations of the same architecture: means over seeds, and their error."""
    agreement: float | None
    """Share of predictions that the two networks have in common, where there is a head."""
    chance: float | None
    """Agreement of the two networks' predictions at independently drawn tokens."""
    collapsed: bool
    """The network is constant: every token has the same representation and prediction."""
    sentences: int
    tokens: int
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> list[str]:
        """Findings in words."""
        return [*_said(self), *self.notes]


def saturation(
    model: nn.Module,
    batches: Iterable[object],
    *,
    c: float = 1024.0,
    selection: Selection | None = None,
    fresh: Callable[[int], nn.Module] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    by_token: bool = False,
) -> Saturation:
    """Cosine of f(x; θ) and f(x; cθ) by layer, on the real tokens of ``batches``.

    ``selection`` says which parameters are scaled: all unless told. ``fresh`` builds the same
    architecture from a seed; every one of ``seeds`` is measured beside the model. Where a type
    overflows, the model is copied to a wider one, and a note says so. Under FSDP2 every rank must
    be given the same batches.
    """

    def limit(of: nn.Module) -> Into:
        scaling = Scaling(of, c, selection=selection)  # whose checks are made once
        return lambda: scaling

    given = list(batches)
    found = replace(compared(model, given, limit, by_token=by_token), c=c)
    return found if fresh is None else replace(found, random=_random(fresh, seeds, given, limit))


def compared(
    model: nn.Module, batches: Iterable[object], limit: Limit, *, by_token: bool = False
) -> Saturation:
    """The same with any other way to make the saturated network, such as the exact one."""
    given = list(batches)
    model, notes = unwrapped(model), list[str]()
    while True:
        try:
            found = _Comparison(model, by_token=by_token).over(given, limit)
            return replace(found, notes=tuple(notes))
        except ScaleOverflowError as error:
            model, note = in_wider_type(model, error)
            notes.append(note)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What a batch's first pass left, in either network."""

    hidden: dict[str, Tensor]
    predicted: Tensor | None


class _Comparison:
    """Two passes a batch; only the first one's hidden states are kept, and only until compared.

    Of every two batches the second is begun in the network that the first one ends in: weights are
    scaled half as often.
    """

    def __init__(self, model: nn.Module, *, by_token: bool) -> None:
        self.model, self.by_token = model, by_token
        self.time_first = is_time_first(model)
        self.norms_in_float32 = hasattr(getattr(model, "config", None), "model_type")
        self.layers: dict[str, Alike] = {}
        self.predicted: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        self.same, self.sentences = 0, 0

    def over(self, batches: Sequence[object], limit: Limit) -> Saturation:
        with as_deployed(self.model):
            into = limit(self.model)
            for start in range(0, len(batches), 2):
                pair = [feed(self.model, batch) for batch in batches[start : start + 2]]
                self._add(pair, into)
                self.sentences += sum(given.sentences for given in pair)
        if not self.layers:
            raise DataError("no batch of text", expected="at least one sentence", do="give text")
        return self._result()

    def _add(self, pair: Sequence[Feed], into: Into) -> None:
        """One batch from the network to its saturated one, and perhaps another one back."""
        one, *more = pair
        there = self._keep(one)
        with into():
            self._compare(one, there, saturated=True)
            back = [self._keep(two) for two in more]
        for two, kept in zip(more, back, strict=True):
            self._compare(two, kept, saturated=False)

    def _keep(self, given: Feed) -> _Kept:
        hidden: dict[str, Tensor] = {}
        predicted = self._pass(
            given, lambda layer, rows, lengths: hidden.__setitem__(layer, rows.clone())
        )
        return _Kept(hidden=hidden, predicted=predicted)

    def _compare(self, given: Feed, kept: _Kept, *, saturated: bool) -> None:
        """A batch's second pass; ``saturated`` where that is the one of the saturated network."""
        words = None
        if self.by_token and given.tokens is not None:
            real = given.real
            words = (given.tokens.flatten() if real is None else given.tokens[real]).tolist()

        def compare(layer: str, rows: Tensor, lengths: list[int]) -> None:
            before = kept.hidden.pop(layer)
            f, sf = (before, rows) if saturated else (rows, before)
            own = words if words is not None and len(words) == len(rows) else None
            self.layers.setdefault(layer, Alike()).add(f, sf, lengths, own)

        predicted = self._pass(given, compare)
        if kept.predicted is not None and predicted is not None:
            both = (kept.predicted, predicted) if saturated else (predicted, kept.predicted)
            self.same += int((both[0] == both[1]).sum())
            for counter, each in zip(self.predicted, both, strict=True):
                counter.update(each.tolist())

    def _pass(self, given: Feed, use: Callable[[str, Tensor, list[int]], None]) -> Tensor | None:
        """One forward pass; predictions of real tokens, where there is a head."""
        too_large: list[str] = []
        last: list[Tensor] = []

        def keep(tower: str, layer: str, hidden: Tensor) -> None:
            value = leading(hidden)
            rows, lengths = real_rows(value, given.of_tower(tower), time_first=self.time_first)
            label = f"{tower}.{layer}" if tower else layer
            last[:] = [value]
            if not in_range(rows, norms_in_float32=self.norms_in_float32):
                too_large.append(label)
            if not too_large:
                use(label, rows, lengths)

        with hidden_states(self.model, keep):
            output = self.model(*given.arguments, **given.keywords)
        if too_large:
            raise self._overflow(too_large[0], last[0].dtype)
        return _predictions(output, given, last[0])

    def _overflow(self, layer: str, dtype: torch.dtype) -> ScaleOverflowError:
        name = str(dtype).removeprefix("torch.")
        if self.norms_in_float32 and dtype == torch.float64:
            name = "float32, in which its norms square,"
        return ScaleOverflowError(
            f"hidden states beyond the range of {name} at layer {layer}",
            expected="finite numbers",
            do="take a smaller c or a wider type",
        )

    def _result(self) -> Saturation:
        layers = tuple(_level(name, each) for name, each in self.layers.items())
        count = sum(self.predicted[0].values())
        agreement = self.same / count if count else None
        chance, commonest = None, 1.0
        if count:
            f, sf = self.predicted
            chance = sum(f[word] * sf[word] for word in f) / count**2
            commonest = max(f.values()) / count
        constant = (layers[-1].other or 0.0) > ALIKE
        return Saturation(
            c=1.0,
            layers=layers,
            random=None,
            agreement=agreement,
            chance=chance,
            collapsed=constant and commonest > ALIKE,
            sentences=self.sentences,
            tokens=next(reversed(self.layers.values())).tokens,
        )


def leading(x: Tensor) -> Tensor:
    """The coefficient of a graded value; ``x`` itself where it is an ordinary tensor."""
    lead = getattr(x, "lead", None)
    return lead if isinstance(lead, Tensor) else x


def in_range(x: Tensor, *, norms_in_float32: bool = False) -> bool:
    """Whether numbers, and their squares where norms take them, are within the type's range.

    transformers clamps float16 1,000 below its largest number (T5, BART): what comes close is no
    result either. Its norms (Llama, T5) square in float32, whatever the model's type: there float16
    has room, and float64 no more than float32 has.
    """
    if not x.numel():
        return True
    narrow = norms_in_float32 and x.dtype == torch.float64
    info = torch.finfo(torch.float32 if narrow else x.dtype)
    limit = info.max - 1024 if x.dtype == torch.float16 else info.max**0.5 / 256
    return bool(x.isfinite().all()) and float(x.abs().max()) < limit


def _predictions(output: Any, given: Feed, last: Tensor) -> Tensor | None:
    """Largest logit of each real token, or of each sample; None without a head."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        logits = None if hasattr(output, "last_hidden_state") else main_tensor(output)
    if logits is None:
        return None
    logits = leading(logits)
    if logits.shape == last.shape and torch.equal(logits, last):
        return None
    chosen = logits.argmax(dim=-1)
    real = given.real
    return chosen[real] if real is not None and chosen.shape == real.shape else chosen.flatten()


def _level(name: str, of: Alike) -> Level:
    return Level(
        layer=name,
        cosine=of.cosine,
        se=of.se,
        other=of.other,
        cross=of.cross,
        centred=of.centred,
        other_saturated=of.other_saturated,
        by_token={word: (n, total / n) for word, (n, total) in of.by_token.items()},
    )


def _random(
    fresh: Callable[[int], nn.Module],
    seeds: Sequence[int],
    batches: Sequence[object],
    limit: Limit,
) -> tuple[Level, ...]:
    if not seeds:
        raise ConfigError("no seeds", expected="at least one", do="give seeds=(0, 1, 2)")
    runs = [compared(fresh(seed), batches, limit).layers for seed in seeds]
    return tuple(_averaged(levels) for levels in zip(*runs, strict=True))


def _averaged(levels: Sequence[Level]) -> Level:
    """Means over seeds; the error is that of seeds, which tokens add to, where there are some."""
    first = levels[0]
    cosines = [each.cosine for each in levels]
    spread = statistics.stdev(cosines) / len(cosines) ** 0.5 if len(cosines) > 1 else first.se

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in levels]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    return Level(
        layer=first.layer,
        cosine=statistics.fmean(cosines),
        se=spread,
        other=mean("other"),
        cross=mean("cross"),
        centred=mean("centred"),
        other_saturated=mean("other_saturated"),
    )


def _said(found: Saturation) -> list[str]:
    last = found.layers[-1]
    if found.collapsed:
        return [
            "Collapsed, not saturated: two tokens' representations at the last layer have cosine "
            f"{last.other or 0:.3f}, so that {last.cosine:.3f} with the saturated network says "
            "nothing."
        ]
    said = [f"Cosine to the saturated network at layer {last.layer}: {last.cosine:.3f}."]
    silent = [each.layer for each in found.layers if each.says_nothing]
    if silent:
        said.append(
            f"At layers {', '.join(silent)} the cosine says nothing: other tokens are as alike "
            f"(above {ALIKE:g})."
        )
    if found.agreement is not None and found.chance is not None:
        said.append(
            f"{found.agreement:.1%} of predictions agree; {found.chance:.1%} would by chance."
        )
    chance = [each.layer for each in found.layers if each.at_chance]
    if chance:
        said.append(
            f"At layers {', '.join(chance)} a token is no nearer to itself in the saturated "
            "network than to other tokens."
        )
    if found.random is not None:
        said.append(_beside_random(found.layers, found.random))
    return said


def _beside_random(layers: Sequence[Level], random: Sequence[Level]) -> str:
    """Layer 0 may be the same for all: a layer norm right after the words undoes any c."""
    same = [a.layer for a, b in zip(layers, random, strict=True) if abs(a.cosine - b.cosine) < 1e-6]
    pairs = [(a, b) for a, b in zip(layers, random, strict=True) if a.layer not in same]
    below = [a.layer for a, b in pairs if a.cosine < b.cosine]
    equal = f" (equal at {', '.join(same)})" if same else ""
    if below:
        return f"Not above random initialisation at layers {', '.join(below)}{equal}."
    return f"Above random initialisation at every layer{equal}."
