"""Next-word prediction: sentences bucketed by length, and packed streams."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, Int64
from numpy import ndarray
from torch import Tensor

from orderone.core.errors import ConfigError, DataError
from orderone.core.targets import IGNORED
from orderone.data.epochs import Epochs
from orderone.data.sequences import Sequences, fingerprint


@dataclass(frozen=True, kw_only=True)
class Batch:
    """``targets[b, t]`` is the token after ``tokens[b, t]``, or IGNORED where ``real`` is False."""

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on ``device``."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in vars(self).items()}
        return Batch(**moved)


class SentenceBatches(Epochs[Batch]):
    """Each sentence exactly once an epoch, in batches of nearly equal lengths.

    A sentence of L tokens makes L − 1 predictions, or L with a ``start`` token put before it; those
    that make none are left out. ``T`` cuts longer ones. The size of a batch is ``batch_size``
    sentences, or as many as fill ``tokens_per_batch`` with padding counted.

    With ``shuffle``, sentences of equal length meet others each epoch, and batches come in random
    order; without, batches come by falling length.
    """

    def __init__(
        self,
        sequences: Sequences,
        *,
        pad: int,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        T: int | None = None,
        start: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, epochs=epochs, rank=rank, world=world)
        if (batch_size is None) == (tokens_per_batch is None) or min(
            1 if size is None else size for size in (batch_size, tokens_per_batch, T)
        ) < 1:
            raise ConfigError(
                f"batch_size={batch_size}, tokens_per_batch={tokens_per_batch}, T={T}",
                expected="either batch_size or tokens_per_batch, and all of them positive",
                do="give one of the two",
            )
        self.sequences, self.pad, self.start, self.shuffle = sequences, pad, start, shuffle
        self.batch_size, self.tokens_per_batch, self.T = batch_size, tokens_per_batch, T
        steps = sequences.lengths - (1 if start is None else 0)
        self._steps = steps if T is None else np.minimum(steps, T)  # predictions of each sentence
        self._usable = np.flatnonzero(self._steps > 0)
        self._check_fit()
        self._batches: list[Int64[ndarray, " B"]] = []

    def _check_fit(self) -> None:
        if len(self._usable) == 0:
            raise DataError(
                f"no sentence with a word to predict among {len(self.sequences)}",
                expected="sentences of two tokens or more",
                do="encode with end=True, or use other text",
            )
        longest = int(self._steps.max())
        if self.tokens_per_batch is not None and longest > self.tokens_per_batch:
            raise ConfigError(
                f"a sentence of {longest} tokens with tokens_per_batch={self.tokens_per_batch}",
                expected="room for the longest sentence",
                do="raise tokens_per_batch or cut sentences with T",
            )

    def _plan(self, epoch: int) -> int:
        order = self._usable
        if self.shuffle:
            order = self.rng(0).permutation(order)
        order = order[np.argsort(-self._steps[order], kind="stable")]
        self._batches = self._cut(order)
        if self.shuffle:
            self._batches = [self._batches[i] for i in self.rng(1).permutation(len(self._batches))]
        return len(self._batches)

    def _cut(self, order: Int64[ndarray, " N"]) -> list[Int64[ndarray, " B"]]:
        """Consecutive batches of ``order``, in which lengths fall: the first is the longest."""
        batches: list[Int64[ndarray, " B"]] = []
        begin = 0
        while begin < len(order):
            longest = int(self._steps[order[begin]])
            size = self.batch_size or (self.tokens_per_batch or 0) // longest
            batches.append(order[begin : begin + size])
            begin += size
        return batches

    def _batch(self, index: int) -> Batch:
        rows = self._batches[index]
        steps = self._steps[rows][:, None]
        column = np.arange(int(steps.max()), dtype=np.int64)[None]
        real = column < steps
        first = self.sequences.offsets[rows][:, None] - (0 if self.start is None else 1)
        flat = self.sequences.tokens
        here = np.where(real, first + column, 0)
        tokens = flat[np.maximum(here, 0)]
        if self.start is not None:
            tokens[:, 0] = self.start
        following = flat[np.where(real, here + 1, 0)]
        return _batch_of(np.where(real, tokens, self.pad), following, real)

    def _identity(self) -> dict[str, int]:
        return {
            "sentences": len(self.sequences),
            "content": fingerprint(self.sequences.tokens),
            "batch_size": self.batch_size or 0,
            "tokens_per_batch": self.tokens_per_batch or 0,
            "T": self.T or 0,
            "start": -1 if self.start is None else self.start,
            "shuffle": int(self.shuffle),
        }


class PackedStream(Epochs[Batch]):
    """Windows of T contiguous tokens of one long text, sentence ends and all; no padding.

    An epoch begins at a random offset below T and shuffles the windows that follow; at most T
    tokens at either end are left out, other ones each time. Without ``shuffle`` the windows cover
    every prediction exactly once, and the last one is padded (with token 0, not real).
    """

    def __init__(
        self,
        tokens: Int32[ndarray, " N"],
        *,
        T: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, epochs=epochs, rank=rank, world=world)
        if T < 1 or batch_size < 1:
            raise ConfigError(
                f"T={T}, batch_size={batch_size}", expected="both positive", do="raise them"
            )
        if len(tokens) < 2 or (shuffle and len(tokens) < 2 * T):
            raise DataError(
                f"a text of {len(tokens)} tokens for windows of T={T}",
                expected=f"at least {2 * T if shuffle else 2} tokens",
                do="use more text or a shorter T",
            )
        self.tokens, self.T, self.batch_size, self.shuffle = tokens, T, batch_size, shuffle
        self._starts: Int64[ndarray, " windows"] = np.empty(0, np.int64)

    def _plan(self, epoch: int) -> int:
        predictions = len(self.tokens) - 1
        if self.shuffle:
            offset = int(self.rng(0).integers(self.T))
            windows = (predictions - offset) // self.T
            self._starts = offset + self.T * self.rng(1).permutation(windows)
        else:
            self._starts = np.arange(0, predictions, self.T, dtype=np.int64)
        return -(-len(self._starts) // self.batch_size)

    def _batch(self, index: int) -> Batch:
        starts = self._starts[index * self.batch_size : (index + 1) * self.batch_size]
        here = starts[:, None] + np.arange(self.T, dtype=np.int64)
        real = here < len(self.tokens) - 1
        here = np.where(real, here, 0)
        return _batch_of(np.where(real, self.tokens[here], 0), self.tokens[here + 1], real)

    def _identity(self) -> dict[str, int]:
        return {
            "tokens": len(self.tokens),
            "content": fingerprint(self.tokens),
            "batch_size": self.batch_size,
            "T": self.T,
            "shuffle": int(self.shuffle),
        }


def _batch_of(
    tokens: Int32[ndarray, "B T"], following: Int32[ndarray, "B T"], real: Bool[ndarray, "B T"]
) -> Batch:
    targets = np.where(real, following, IGNORED)
    return Batch(
        tokens=torch.from_numpy(tokens.astype(np.int64)),
        targets=torch.from_numpy(targets.astype(np.int64)),
        real=torch.from_numpy(real),
    )
