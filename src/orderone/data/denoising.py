"""Span denoising: sentences permuted, spans behind one [MASK] each, the original to be restored.

[DYZ23] §II.2.A, after BART. What the text leaves open, and what is done here:

- A span of length 0, which Poisson(3) draws in one case of twenty, inserts a [MASK] and hides
  nothing, as in BART. Without these the mean span would be 3/(1 − e⁻³) = 3.16 and not 3.
- The last span is cut so that the hidden tokens number 0.3 L, rounded, exactly.
- Spans don't overlap and lie uniformly at random among the tokens that stay; two may touch.
- [start] and [end] are outside the sample: neither masked nor counted.
- A sample is as many consecutive sentences as fit; a sentence above T − 2 tokens is cut.
- The decoder reads its targets shifted right behind [end] (fairseq's convention, which both
  papers trained with), so that it also predicts [start], and T is the same on both sides.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, Int64
from numpy import ndarray
from torch import Tensor

from orderone.core.errors import ConfigError, DataError
from orderone.core.targets import IGNORED
from orderone.data.bpe import SpecialTokens
from orderone.data.epochs import Epochs
from orderone.data.sequences import Sequences, fingerprint, runs

SHARE = 0.3  # of tokens hidden
MEAN_SPAN = 3.0  # the Poisson distribution's mean and variance
T_PUBLISHED = 514


@dataclass(frozen=True, kw_only=True)
class DenoisingBatch:
    """Corrupted ``source`` for the encoder; ``targets`` and their right shift for the decoder.

    ``real`` masks are True where there is no padding; ``targets`` are IGNORED where there is.
    """

    source: Int[Tensor, "B T"]
    source_real: Bool[Tensor, "B T"]
    target_in: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    target_real: Bool[Tensor, "B T"]

    @property
    def tokens(self) -> Int[Tensor, "B T"]:
        """What is predicted from, and counted: the decoder's side."""
        return self.target_in

    def to(self, device: torch.device | str) -> "DenoisingBatch":
        """The same batch on ``device``."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in vars(self).items()}
        return DenoisingBatch(**moved)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Consecutive sentences grouped into samples; lengths in tokens, ``owner`` sorted."""

    tokens: Int32[ndarray, " tokens"]
    lengths: Int64[ndarray, " sentences"]
    owner: Int64[ndarray, " sentences"]
    count: int

    @property
    def sizes(self) -> Int64[ndarray, " samples"]:
        """Tokens in each sample."""
        return np.bincount(self.owner, self.lengths, self.count).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Corrupted:
    """Samples after permutation and masking, and what undoes both.

    Slot s of sample b stands for ``widths[b, s]`` tokens of the permuted text: 1 for a token that
    stayed, any number for a [MASK] (``masked``), 0 past the sample's end. ``hidden`` are the tokens
    behind the masks in reading order; sentence k of the permuted text was sentence ``order[k]``.
    """

    source: Int32[ndarray, "samples slots"]
    widths: Int64[ndarray, "samples slots"]
    masked: Bool[ndarray, "samples slots"]
    slots: Int64[ndarray, " samples"]
    hidden: Int32[ndarray, " hidden"]
    order: Int64[ndarray, " sentences"]


def corrupted(
    samples: Samples, *, room: int, mask: int, rng: np.random.Generator, share: float = SHARE
) -> Corrupted:
    """``samples`` with sentences permuted and spans masked, each in at most ``room`` slots."""
    order = permutation(samples.owner, rng)
    text = samples.tokens[_reading(samples.lengths, order)]
    sizes = samples.sizes
    wanted = np.rint(share * sizes).astype(np.int64)
    drawn, used = drawn_spans(wanted, rng)
    spans = np.minimum(drawn, wanted[:, None] - (np.cumsum(drawn, 1) - drawn))
    used = _without_excess(spans, used, room - (sizes - wanted))
    slots = sizes - wanted + used.sum(1)
    widths, masked = placed(np.where(used, spans, -1), slots, rng)
    return _infilled(text, sizes, widths, masked, slots, order, mask)


def permutation(
    owner: Int64[ndarray, " sentences"], rng: np.random.Generator
) -> Int64[ndarray, " sentences"]:
    """A uniformly random order of the sentences within each sample."""
    return np.lexsort((rng.random(len(owner)), owner)).astype(np.int64)


def drawn_spans(
    wanted: Int64[ndarray, " samples"], rng: np.random.Generator, mean: float = MEAN_SPAN
) -> tuple[Int64[ndarray, "samples draws"], Bool[ndarray, "samples draws"]]:
    """Poisson lengths in the order drawn, and which are drawn before ``wanted`` is reached.

    The last of them may overshoot. By Wald's identity the lengths used have the mean 3 exactly,
    as a ratio of expectations, only before the last one is cut.
    """
    most = int(wanted.max(initial=0)) / mean
    columns = int(most + 6 * most**0.5) + 4
    drawn = rng.poisson(mean, (len(wanted), columns)).astype(np.int64)
    while (drawn.sum(1) < wanted).any():
        drawn = np.hstack([drawn, rng.poisson(mean, drawn.shape).astype(np.int64)])
    used = np.cumsum(drawn, 1) - drawn < wanted[:, None]
    return drawn, used


def _without_excess(
    spans: Int64[ndarray, "samples draws"],
    used: Bool[ndarray, "samples draws"],
    most: Int64[ndarray, " samples"],
) -> Bool[ndarray, "samples draws"]:
    """``used`` less the first insertions, where a sample has more than ``most`` spans.

    Only then could a source be longer than its original's room. It takes more masks than hidden
    tokens, so at 512 tokens it never happens (probability 1e-60); in tiny samples it does.
    """
    excess = np.maximum(used.sum(1) - most, 0)[:, None]
    empty = used & (spans == 0)
    return used & ~(empty & (np.cumsum(empty, 1) <= excess))


def placed(
    spans: Int64[ndarray, "samples draws"],
    slots: Int64[ndarray, " samples"],
    rng: np.random.Generator,
) -> tuple[Int64[ndarray, "samples slots"], Bool[ndarray, "samples slots"]]:
    """Width of each slot and whether it is a mask; ``spans`` below 0 are none.

    Spans take a uniformly random set of the sample's slots in random order: the cut last span
    would otherwise always stand last.
    """
    column = np.arange(int(slots.max(initial=0)))[None]
    inside = column < slots[:, None]
    # A float32 key has 24 bits: the rare tie is harmless, and sorting takes half as long.
    keys = np.where(inside, rng.random(inside.shape, dtype=np.float32), np.float32(2))
    shuffled = np.argsort(keys, axis=1)
    row, draw = np.nonzero(spans >= 0)
    rank = (np.cumsum(spans >= 0, 1) - 1)[row, draw]
    slot = shuffled[row, rank]
    widths = inside.astype(np.int64)
    widths[row, slot] = spans[row, draw]
    masked = np.zeros_like(inside)
    masked[row, slot] = True
    return widths, masked


def _infilled(
    text: Int32[ndarray, " tokens"],
    sizes: Int64[ndarray, " samples"],
    widths: Int64[ndarray, "samples slots"],
    masked: Bool[ndarray, "samples slots"],
    slots: Int64[ndarray, " samples"],
    order: Int64[ndarray, " sentences"],
    mask: int,
) -> Corrupted:
    begin = np.cumsum(sizes) - sizes
    at = begin[:, None] + np.cumsum(widths, 1) - widths
    source = np.where(masked, np.int32(mask), text[np.minimum(at, max(len(text) - 1, 0))])
    hidden = text[runs(at[masked], widths[masked])]
    return Corrupted(
        source=source, widths=widths, masked=masked, slots=slots, hidden=hidden, order=order
    )


def restored(found: Corrupted, lengths: Int64[ndarray, " sentences"]) -> Int32[ndarray, " tokens"]:
    """The original tokens of all samples: masks opened, sentences (of ``lengths``) put back."""
    inside = np.arange(found.source.shape[1])[None] < found.slots[:, None]
    widths = found.widths[inside]
    text = np.repeat(found.source[inside], widths)
    text[np.repeat(found.masked[inside], widths)] = found.hidden
    original = np.empty_like(text)
    original[_reading(lengths, found.order)] = text
    return original


def _reading(
    lengths: Int64[ndarray, " sentences"], order: Int64[ndarray, " sentences"]
) -> Int64[ndarray, " tokens"]:
    """Where each token of the permuted text stands in the original."""
    begins = np.cumsum(lengths) - lengths
    return runs(begins[order], lengths[order])


class DenoisingBatches(Epochs[DenoisingBatch]):
    """Samples of consecutive sentences up to T − 2 tokens, corrupted anew each epoch.

    Encode the sentences with ``end=False``, since [start] and [end] frame the sample here, and with
    their own white space, ``line + "\\n"``: nothing else parts them once they are permuted.
    """

    def __init__(
        self,
        sentences: Sequences,
        *,
        special: SpecialTokens,
        batch_size: int,
        T: int = T_PUBLISHED,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, epochs=epochs, rank=rank, world=world)
        if T < 3 or batch_size < 1:
            raise ConfigError(
                f"T={T}, batch_size={batch_size}",
                expected="T of 3 or more ([start], a token, [end]) and a positive batch size",
                do="raise them",
            )
        if len(sentences.tokens) == 0:
            raise DataError("no tokens to corrupt", expected="encoded sentences", do="give text")
        self.special, self.batch_size, self.T, self.shuffle = special, batch_size, T, shuffle
        self.sentences = sentences.cut(T - 2)
        self._bounds = sample_bounds(self.sentences, T - 2)
        self._order: Int64[ndarray, " samples"] = np.empty(0, np.int64)

    def _plan(self, epoch: int) -> int:
        count = len(self._bounds) - 1
        self._order = self.rng(0).permutation(count) if self.shuffle else np.arange(count)
        return -(-count // self.batch_size)

    def samples(self, index: int) -> Samples:
        """The originals of batch ``index`` of the present epoch."""
        self._count()  # plans the epoch
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        first, last = self._bounds[rows], self._bounds[rows + 1]
        which = runs(first, last - first)
        offsets = self.sentences.offsets
        lengths = offsets[which + 1] - offsets[which]
        tokens = self.sentences.tokens[runs(offsets[which], lengths)]
        owner = np.repeat(np.arange(len(rows), dtype=np.int64), last - first)
        return Samples(tokens=tokens, lengths=lengths, owner=owner, count=len(rows))

    def _batch(self, index: int) -> DenoisingBatch:
        samples = self.samples(index)
        rng = self.rng(1, index)
        noisy = corrupted(samples, room=self.T - 2, mask=self.special.mask, rng=rng)
        inside = np.arange(noisy.source.shape[1])[None] < noisy.slots[:, None]
        source, source_real = self._framed(noisy.source[inside], noisy.slots)
        original, target_real = self._framed(samples.tokens, samples.sizes)
        target_in = torch.roll(original, 1, 1)
        target_in[:, 0] = self.special.end
        return DenoisingBatch(
            source=source,
            source_real=source_real,
            target_in=target_in.masked_fill(~target_real, self.special.pad),
            targets=original.masked_fill(~target_real, IGNORED),
            target_real=target_real,
        )

    def _framed(
        self, tokens: Int32[ndarray, " tokens"], sizes: Int64[ndarray, " samples"]
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """[start] tokens [end] [pad] ... of each sample, T wide, and what is not padding."""
        column = np.arange(self.T)[None]
        frame = np.full((len(sizes), self.T), self.special.pad, np.int64)
        frame[:, 0] = self.special.start
        frame[(column > 0) & (column <= sizes[:, None])] = tokens
        frame[np.arange(len(sizes)), sizes + 1] = self.special.end
        return torch.from_numpy(frame), torch.from_numpy(column < sizes[:, None] + 2)

    def _identity(self) -> dict[str, int]:
        return {
            "sentences": len(self.sentences),
            "content": fingerprint(self.sentences.tokens),
            "batch_size": self.batch_size,
            "T": self.T,
            "shuffle": int(self.shuffle),
        }


def sample_bounds(sentences: Sequences, room: int) -> Int64[ndarray, " samples_and_one"]:
    """Sample i holds sentences bounds[i] to bounds[i + 1]: as many as fit into ``room`` tokens."""
    bounds = [0]
    while bounds[-1] < len(sentences):
        limit = sentences.offsets[bounds[-1]] + room
        bounds.append(int(np.searchsorted(sentences.offsets, limit, "right")) - 1)
    return np.asarray(bounds, dtype=np.int64)
