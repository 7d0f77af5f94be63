"""Encoded text: one flat array of tokens and where each sequence begins."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64
from numpy import ndarray

from orderone.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """``tokens[offsets[i]:offsets[i + 1]]`` is sequence i: four bytes a token."""

    tokens: Int32[ndarray, " tokens"]
    offsets: Int64[ndarray, " sequences_and_one"]

    def __post_init__(self) -> None:
        assert self.offsets[0] == 0
        assert self.offsets[-1] == len(self.tokens)

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> "Sequences":
        """From rows of token ids, each copied into the flat array as it comes."""
        parts: list[ndarray] = []
        lengths = [0]
        for row in rows:
            parts.append(np.asarray(row, dtype=np.int32))
            lengths.append(len(row))
        tokens = np.concatenate([np.empty(0, np.int32), *parts])
        return cls(tokens=tokens, offsets=np.cumsum(np.asarray(lengths, dtype=np.int64)))

    @classmethod
    def joined(cls, parts: Iterable["Sequences"]) -> "Sequences":
        """One after another."""
        parts = list(parts)
        lengths = [np.zeros(1, np.int64), *(part.lengths for part in parts)]
        return cls(
            tokens=np.concatenate([np.empty(0, np.int32), *(part.tokens for part in parts)]),
            offsets=np.cumsum(np.concatenate(lengths)),
        )

    @property
    def lengths(self) -> Int64[ndarray, " sequences"]:
        """Tokens in each sequence."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Int32[ndarray, " tokens"]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def cut(self, room: int) -> "Sequences":
        """The same tokens, with each sequence above ``room`` tokens cut into pieces; none empty."""
        if room < 1:
            raise ConfigError(f"room={room}", expected="at least 1 token", do="raise T")
        pieces = -(-self.lengths // room)
        first = np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = np.repeat(self.offsets[:-1], pieces) + room * (np.arange(len(first)) - first)
        offsets = np.append(begins, np.int64(len(self.tokens)))
        return Sequences(tokens=self.tokens, offsets=offsets if len(begins) else offsets * 0)


def fingerprint(tokens: Int32[ndarray, " tokens"]) -> int:
    """A checksum of up to 65,536 evenly spaced tokens: enough to notice another corpus."""
    return zlib.crc32(np.ascontiguousarray(tokens[:: max(1, len(tokens) // 65536)]).tobytes())


def runs(starts: Int64[ndarray, " n"], lengths: Int64[ndarray, " n"]) -> Int64[ndarray, " total"]:
    """start, start + 1, ..., start + length − 1 of every run, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
