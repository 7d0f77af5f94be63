"""Sentences of the small language models, [MRGSS21] App. A: one a sequence, cut and padded to T."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64
from numpy import ndarray
from torch import Tensor

from orderone.data.corpora import corpus
from orderone.data.vocabulary import Vocabulary

CorpusName = Literal["penn", "wikitext-2"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Sentences, their end mark included, cut and padded to T tokens."""

    tokens: Int32[ndarray, "sentences T"]
    lengths: Int64[ndarray, " sentences"]
    """Tokens of each; one fewer are predicted."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def words(self) -> int:
        """Words to predict."""
        return int((self.lengths - 1).sum())

    def first(self, count: int) -> Split:
        """The first ``count`` sentences."""
        return Split(tokens=self.tokens[:count], lengths=self.lengths[:count])


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallText:
    """A corpus of a small model."""

    vocabulary: Vocabulary
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallBatch:
    """Sentences, and the places at which a word follows that is to be predicted."""

    tokens: Int[Tensor, "b t"]
    places: Int[Tensor, " words"]
    """Of (b, t) as one row: the head is asked for nothing else."""
    targets: Int[Tensor, " words"]

    def to(self, device: torch.device) -> SmallBatch:
        """The same batch on ``device``."""
        return SmallBatch(
            tokens=self.tokens.to(device, non_blocking=True),
            places=self.places.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
        )


@lru_cache(maxsize=2)
def small_text(
    name: CorpusName,
    *,
    T: int,
    sentences: int | None = None,
    vocabulary: int | None = None,
    data: Path | None = None,
) -> SmallText:
    """The corpus as sentences; ``sentences`` keeps so many to train on, a tenth to measure with.

    Penn comes from its package, WikiText-2 from the folder ``data``.
    """
    found = corpus(name, folder=data if name == "wikitext-2" else None)
    held = None if sentences is None else max(1, sentences // 10)
    lines = found.train[:sentences]
    words = Vocabulary.build(lines, size=vocabulary)
    return SmallText(
        vocabulary=words,
        train=_split(words, lines, T),
        validation=_split(words, found.validation[:held], T),
        test=_split(words, found.test[:held], T),
    )


def batches(
    split: Split, rows: Int64[ndarray, " n"], *, size: int, padded: bool
) -> Iterator[SmallBatch]:
    """Batches of ``size`` of the sentences ``rows``, in that order.

    Without ``padded`` a batch is cut after its longest sentence: what follows is seen by none.
    """
    for begin in range(0, len(rows), size):
        chosen = rows[begin : begin + size]
        yield _batch(split.tokens[chosen], split.lengths[chosen], padded=padded)


def shuffled(
    split: Split, *, size: int, padded: bool, seed: int, epochs: int
) -> Iterator[SmallBatch]:
    """Every sentence once an epoch, in an order that is a function of seed and epoch."""
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(split))
        yield from batches(split, order, size=size, padded=padded)


def by_length(split: Split) -> Int64[ndarray, " n"]:
    """Rows by rising length, so that batches have little padding."""
    return np.argsort(split.lengths, kind="stable")


def _split(vocabulary: Vocabulary, lines: list[str], T: int) -> Split:
    rows = [(*vocabulary.encode(line), vocabulary.end)[:T] for line in lines]
    rows = [row for row in rows if len(row) > 1]
    tokens = np.full((len(rows), T), vocabulary.pad, dtype=np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return Split(tokens=tokens, lengths=np.array([len(row) for row in rows], dtype=np.int64))


def _batch(
    tokens: Int32[ndarray, "b T"], lengths: Int64[ndarray, " b"], *, padded: bool
) -> SmallBatch:
    room = tokens.shape[1] if padded else int(lengths.max())
    kept = tokens[:, :room].astype(np.int64)
    predicts = np.arange(room) < lengths[:, None] - 1
    following = np.roll(kept, -1, axis=1)
    return SmallBatch(
        tokens=torch.from_numpy(kept),
        places=torch.from_numpy(np.flatnonzero(predicts)),
        targets=torch.from_numpy(following[predicts]),
    )
