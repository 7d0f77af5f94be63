"""Span denoising: undone exactly, 30 % hidden, spans of mean 3, uniform orders and places."""

from collections import Counter
from itertools import chain, pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from orderone.core.errors import ConfigError, DataError
from orderone.core.targets import IGNORED
from orderone.data.bpe import SpecialTokens
from orderone.data.denoising import (
    MEAN_SPAN,
    SHARE,
    DenoisingBatch,
    DenoisingBatches,
    Samples,
    corrupted,
    drawn_spans,
    permutation,
    placed,
    restored,
    sample_bounds,
)
from orderone.data.sequences import Sequences

MASK = 1000
SPECIAL = SpecialTokens(pad=900, start=901, end=902, mask=MASK)


def samples_of(groups: list[list[int]]) -> Samples:
    """Sentences of the given lengths by sample, each token with a number of its own."""
    lengths = np.asarray([n for group in groups for n in group], dtype=np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64)
    tokens = np.arange(2000, 2000 + lengths.sum(), dtype=np.int32)
    return Samples(tokens=tokens, lengths=lengths, owner=owner, count=len(groups))


groups = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=6)


@given(groups, st.integers(0, 2**32), st.booleans())
def test_undoing_it_gives_the_original(group: list[list[int]], seed: int, tight: bool) -> None:
    samples = samples_of(group)
    room = max(samples.sizes) + (0 if tight else 40)
    found = corrupted(samples, room=int(room), mask=MASK, rng=default_rng(seed))
    assert np.array_equal(restored(found, samples.lengths), samples.tokens)
    assert (found.slots <= room).all()
    # What stays visible is what a plain reading of the definition says.
    hidden = np.rint(SHARE * samples.sizes)
    visible = [(~found.masked[b, : found.slots[b]]).sum() for b in range(samples.count)]
    assert np.array_equal(visible, samples.sizes - hidden)
    assert len(found.hidden) == hidden.sum()
    assert (found.source[found.masked] == MASK).all()


def test_insertions_never_outgrow_the_room() -> None:
    """A sample of 2 tokens draws an empty span first in e⁻³ of cases, without room for it."""
    samples = samples_of([[2]] * 2000)
    loose = corrupted(samples, room=40, mask=MASK, rng=default_rng(5))
    tight = corrupted(samples, room=2, mask=MASK, rng=default_rng(5))
    assert (loose.slots > 2).any()
    assert (tight.slots == 2).all()
    assert np.array_equal(restored(tight, samples.lengths), samples.tokens)


@given(groups, st.integers(0, 2**32))
def test_sentences_move_whole_and_only_within_their_sample(
    group: list[list[int]], seed: int
) -> None:
    samples = samples_of(group)
    found = corrupted(samples, room=200, mask=MASK, rng=default_rng(seed), share=0.0)
    sentences = np.split(samples.tokens, np.cumsum(samples.lengths)[:-1])
    for b in range(samples.count):
        text = found.source[b, : found.slots[b]].tolist()
        own = [i for i in range(len(sentences)) if samples.owner[i] == b]
        order = sorted(own, key=lambda i: text.index(sentences[i][0]))
        assert text == [token for i in order for token in sentences[i].tolist()]


def test_the_mean_span_is_three_within_sampling_error() -> None:
    """Before the cut, Σ lengths = 3 × number in expectation (Wald), with variance 3 a span."""
    wanted = np.full(4000, round(SHARE * 512), dtype=np.int64)
    drawn, used = drawn_spans(wanted, default_rng(0))
    number = used.sum()
    mean = drawn[used].sum() / number
    assert abs(mean - MEAN_SPAN) < 4 * (3 / number) ** 0.5
    # Poisson(3) has the value 0 with probability e⁻³: insertions are kept.
    zeros = (drawn[used] == 0).mean()
    assert abs(zeros - np.exp(-3)) < 4 * (np.exp(-3) / number) ** 0.5
    assert (np.where(used, drawn, 0).sum(1) >= wanted).all()


def test_thirty_percent_hidden_and_a_mean_span_of_three_in_batches() -> None:
    """The cut takes the mean overshoot E[l²]/2E[l] − ½ = 3/2 off each sample's spans."""
    samples = samples_of([[16] * 32] * 500)
    found = corrupted(samples, room=512, mask=MASK, rng=default_rng(1))
    hidden = np.where(found.masked, found.widths, 0).sum(1)
    assert (hidden == 154).all()  # 0.3 × 512 = 153.6
    spans = found.masked.sum()
    expected = MEAN_SPAN * 154 / (154 + 1.5)
    assert abs(hidden.sum() / spans - expected) < 4 * (3 / spans) ** 0.5


def test_permutations_are_uniform() -> None:
    """Each of the 3! orders has frequency 1/6 within four standard errors."""
    n = 12_000
    owner = np.repeat(np.arange(n), 3).astype(np.int64)
    orders = permutation(owner, default_rng(2)).reshape(n, 3) - 3 * np.arange(n)[:, None]
    counts = Counter(map(tuple, orders.tolist()))
    assert set(counts) == set(permutations(range(3)))
    assert all(abs(c - n / 6) < 4 * (n * 5 / 36) ** 0.5 for c in counts.values())


def test_spans_are_placed_uniformly_in_random_order() -> None:
    """Two spans, told apart by their lengths, over five slots: each of 20 placings 1/20."""
    n = 20_000
    spans = np.tile(np.asarray([4, 7], dtype=np.int64), (n, 1))
    widths, masked = placed(spans, np.full(n, 5, dtype=np.int64), default_rng(3))
    assert (masked.sum(1) == 2).all()
    places = Counter(zip((widths == 4).argmax(1), (widths == 7).argmax(1), strict=True))
    assert len(places) == 20
    assert all(abs(c - n / 20) < 4 * (n * 19 / 400) ** 0.5 for c in places.values())


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(60, 90))
def test_samples_are_greedy(lengths: list[int], room: int) -> None:
    bounds = sample_bounds(Sequences.of([[0] * n for n in lengths]), room).tolist()
    assert [bounds[0], bounds[-1]] == [0, len(lengths)]
    for i, (first, last) in enumerate(pairwise(bounds)):
        assert sum(lengths[first:last]) <= room
        assert i == len(bounds) - 2 or sum(lengths[first : last + 1]) > room


def numbered(lengths: list[int]) -> Sequences:
    tokens = iter(range(2000, 2000 + sum(lengths)))
    return Sequences.of([[next(tokens) for _ in range(n)] for n in lengths])


def original_of(batch: DenoisingBatch, b: int) -> list[int]:
    return batch.targets[b][batch.target_real[b]].tolist()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=40), st.integers(0, 9))
def test_batches_are_framed_shifted_and_padded(lengths: list[int], seed: int) -> None:
    if not sum(lengths):
        return
    text = numbered(lengths)
    batches = DenoisingBatches(text, special=SPECIAL, batch_size=3, T=42, seed=seed, epochs=1)
    seen: list[list[int]] = []
    for batch in batches:
        assert {tensor.shape[1] for tensor in vars(batch).values()} == {42}
        assert torch.equal(batch.source_real, batch.source != SPECIAL.pad)
        assert torch.equal(batch.target_real, batch.targets != IGNORED)
        assert torch.equal(batch.target_real, batch.target_in != SPECIAL.pad)
        assert not (batch.targets == SPECIAL.pad).any()
        for b in range(len(batch.source)):
            original, source = original_of(batch, b), batch.source[b][batch.source_real[b]].tolist()
            assert [original[0], original[-1]] == [SPECIAL.start, SPECIAL.end]
            assert [source[0], source[-1]] == [SPECIAL.start, SPECIAL.end]
            shifted = batch.target_in[b][batch.target_real[b]].tolist()
            assert shifted == [SPECIAL.end, *original[:-1]]
            kept = [token for token in source[1:-1] if token != MASK]
            assert set(kept) <= set(original[1:-1])
            assert len(original) - 2 - len(kept) == np.rint(SHARE * (len(original) - 2))
            seen.append(original[1:-1])
    assert list(chain.from_iterable(sorted(seen))) == text.tokens.tolist()


def test_noise_is_new_each_batch_and_epoch_and_samples_stay() -> None:
    text = numbered([10] * 40)
    batches = DenoisingBatches(text, special=SPECIAL, batch_size=5, T=42, shuffle=False, epochs=2)
    first, second, again, _ = list(batches)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.source, again.source)
    # Nor do the batches of an epoch share their noise.
    assert not torch.equal(first.source == MASK, second.source == MASK)


def test_published_shape() -> None:
    batch = next(DenoisingBatches(numbered([16] * 200), special=SPECIAL, batch_size=2))
    assert batch.source.shape == (2, 514)
    assert batch.target_real.all()  # 32 sentences of 16 fill the 512 tokens


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="T=2"):
        DenoisingBatches(numbered([4]), special=SPECIAL, batch_size=1, T=2)
    with pytest.raises(DataError, match="no tokens"):
        DenoisingBatches(Sequences.of([[]]), special=SPECIAL, batch_size=1)
