"""How saturated a model is, layer by layer, beside random initialisations and the exact limit.

Source   [MRGSS21] §4.1, Fig. 2
Expect   trained above random at every layer
Cost     100 sentences, base size: two forward passes, and two more for each random seed
Differs  c = 1024; random initialisations without dropout; with controls
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from orderone.asymptotics.interpret import graded_parameters
from orderone.core.errors import ModelError
from orderone.core.selection import Selection, selected
from orderone.data.real_text import some_sentences
from orderone.experiments.loaded import Loaded, loaded
from orderone.experiments.sentences import LONGEST, TOKENS, Sentences, sentence_batches
from orderone.probes.curve import scaling_curve, without_biases
from orderone.probes.heads import Heads, heads
from orderone.probes.saturation import Into, Limit, Saturation, compared, saturation

__all__ = [
    "Curves",
    "Measured",
    "exact_saturation",
    "measured_heads",
    "measured_saturation",
    "scaling_curves",
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Saturation of a named model on a text."""

    found: Saturation
    exact: Saturation | None
    """By graded values: c = ∞, where every operation has a rule."""
    sentences: Sentences
    curves: Curves | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Cosine of f(x; cθ) and sf(x; θ) over c, with and without biases, [MRGSS21] Fig. 4."""

    given: tuple[Saturation, ...]
    without_biases: tuple[Saturation, ...]
    exact: bool
    """Against the limit itself; else against f at c = 1024."""


def measured_saturation(
    model: str,
    text: str | Path,
    *,
    c: float = 1024.0,
    count: int = 100,
    seeds: Sequence[int] = (0, 1, 2),
    stack_only: bool = False,
    exact: bool = False,
    by_token: bool = False,
    cs: Sequence[float] | None = None,
    longest: int = LONGEST,
    tokens: int = TOKENS,
    tokenizer: Path | None = None,
) -> Measured:
    """Saturation of MODEL on sentences of ``text``, with random initialisations if it is trained.

    With ``stack_only`` embeddings and the head are left as they are; ``cs`` asks for its scaling
    curves too.
    """
    given, sentences = _given(model, text, count, longest, tokens, tokenizer)
    selection = Selection() if stack_only else None
    found = saturation(
        given.model,
        sentences.batches,
        c=c,
        selection=selection,
        fresh=given.fresh if seeds and given.folder is not None else None,
        seeds=seeds,
        by_token=by_token,
    )
    notes = () if given.folder else ("These weights are random: a model that is not trained.",)
    limit, note = _exact(given.model, sentences, selection) if exact else (None, ())
    found = replace(found, notes=(*found.notes, *notes, *note))
    batches = sentences.batches
    curves = scaling_curves(given.model, batches, cs=cs, selection=selection) if cs else None
    return Measured(
        found=found,
        exact=limit,
        sentences=sentences,
        curves=curves,
        notes=found.notes,
    )


def measured_heads(
    model: str,
    text: str | Path,
    *,
    c: float = 1024.0,
    count: int = 200,
    stack_only: bool = False,
    as_coded: bool = False,
    longest: int = LONGEST,
    tokens: int = TOKENS,
    tokenizer: Path | None = None,
) -> Heads:
    """Positions attended by the heads of MODEL on sentences of ``text``, [MRGSS21] §4.3."""
    given, sentences = _given(model, text, count, longest, tokens, tokenizer)
    selection = Selection() if stack_only else None
    return heads(given.model, sentences.batches, c=c, selection=selection, as_coded=as_coded)


def exact_saturation(
    model: nn.Module, batches: Sequence[object], *, selection: Selection | None = None
) -> Saturation:
    """The same against lim f(x; cθ) itself, in float64, from a copy; ModelError without a rule."""
    wide = copy.deepcopy(model).double()
    everything = compared(wide, batches, exact_limit(selection))
    return replace(everything, c=float("inf"))


def exact_limit(selection: Selection | None = None) -> Limit:
    """lim f(x; cθ) by graded values, for ``compared`` and ``scaling_curve``."""

    def limit(of: nn.Module) -> Into:
        scaled = None if selection is None else list(selected(of, selection))
        return lambda: graded_parameters(of, scaled=scaled)

    return limit


def scaling_curves(
    model: nn.Module,
    batches: Sequence[object],
    *,
    cs: Sequence[float],
    selection: Selection | None = None,
) -> Curves:
    """Of any model: in float64 to the exact limit, or as it is to c = 1024 where there is none."""
    wide = copy.deepcopy(model).double()
    try:
        return _curves(wide, batches, cs, exact_limit(selection), selection)
    except ModelError:
        return _curves(model, batches, cs, None, selection)


def _curves(
    model: nn.Module,
    batches: Sequence[object],
    cs: Sequence[float],
    limit: Limit | None,
    selection: Selection | None,
) -> Curves:
    given, bare = (
        scaling_curve(each, batches, cs=cs, limit=limit, selection=selection)
        for each in (model, without_biases(model))
    )
    return Curves(given=given, without_biases=bare, exact=limit is not None)


def _given(
    model: str, text: str | Path, count: int, longest: int, tokens: int, tokenizer: Path | None
) -> tuple[Loaded, Sentences]:
    chosen = some_sentences(text, count=count)
    given = loaded(model)
    folder = given.folder if tokenizer is None else tokenizer
    made = sentence_batches(given.model, chosen, folder=folder, longest=longest, tokens=tokens)
    return given, made


def _exact(
    model: nn.Module, sentences: Sentences, selection: Selection | None
) -> tuple[Saturation | None, tuple[str, ...]]:
    try:
        return exact_saturation(model, sentences.batches, selection=selection), ()
    except ModelError as error:
        return None, (f"No exact limit: {error.found}.",)
