"""Next-word batches against the sentences that they were made of."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orderone.core.errors import ConfigError, DataError
from orderone.core.targets import IGNORED
from orderone.data.batches import Batch, PackedStream, SentenceBatches
from orderone.data.sequences import Sequences

PAD, START = 99, 98
rows = st.lists(st.lists(st.integers(0, 97), max_size=12), min_size=1, max_size=30)


def sentences_of(batch: Batch) -> list[tuple[int, ...]]:
    """What the batch predicts: every first token, then the targets."""
    return [
        (int(batch.tokens[b, 0]), *batch.targets[b][batch.real[b]].tolist())
        for b in range(len(batch.tokens))
    ]


def assert_padding_is_inert(batch: Batch) -> None:
    assert torch.equal(batch.tokens == PAD, ~batch.real)
    assert torch.equal(batch.targets == IGNORED, ~batch.real)
    assert not (batch.targets == PAD).any()
    # The real part is a prefix, and inside it the targets are the next tokens.
    assert (batch.real[:, 1:] <= batch.real[:, :-1]).all()
    assert torch.equal(
        batch.targets[:, :-1][batch.real[:, 1:]], batch.tokens[:, 1:][batch.real[:, 1:]]
    )


@given(rows, st.sampled_from([{"batch_size": 4}, {"tokens_per_batch": 30}]), st.booleans())
def test_every_sentence_once_an_epoch(
    original: list[list[int]], size: dict[str, int], shuffle: bool
) -> None:
    expected = Counter(tuple(row) for row in original if len(row) > 1)
    if not expected:
        return
    batches = SentenceBatches(Sequences.of(original), pad=PAD, epochs=3, shuffle=shuffle, **size)
    epochs: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(3)]
    for batch in batches:
        epochs[batches.epoch].update(sentences_of(batch))
        assert_padding_is_inert(batch)
        assert batch.tokens.numel() <= 30 or "batch_size" in size
    assert epochs == [expected] * 3


@given(rows)
def test_a_start_token_lets_every_word_be_predicted(original: list[list[int]]) -> None:
    expected = Counter((START, *row) for row in original if row)
    if not expected:
        return
    found: Counter[tuple[int, ...]] = Counter()
    for batch in SentenceBatches(
        Sequences.of(original), pad=PAD, batch_size=4, start=START, epochs=1
    ):
        found.update(sentences_of(batch))
        assert_padding_is_inert(batch)
    assert found == expected


def test_buckets_waste_less_than_random_batches_and_T_cuts() -> None:
    lengths = np.random.default_rng(0).integers(2, 60, 400)
    text = Sequences.of([[1] * int(n) for n in lengths])
    shapes = [b.real for b in SentenceBatches(text, pad=PAD, batch_size=16, epochs=1)]
    assert sum(int(r.sum()) for r in shapes) / sum(r.numel() for r in shapes) > 0.94
    cut = list(SentenceBatches(text, pad=PAD, batch_size=16, T=10, epochs=1))
    assert sum(int(b.real.sum()) for b in cut) == np.minimum(lengths - 1, 10).sum()
    assert max(b.tokens.shape[1] for b in cut) == 10


def test_impossible_sizes_are_refused() -> None:
    text = Sequences.of([[1] * 20])
    for sizes in ({}, {"batch_size": 1, "tokens_per_batch": 9}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match="either batch_size"):
            SentenceBatches(text, pad=PAD, **sizes)
    with pytest.raises(ConfigError, match="sentence of 19 tokens"):
        SentenceBatches(text, pad=PAD, tokens_per_batch=18)
    with pytest.raises(DataError, match="no sentence"):
        SentenceBatches(Sequences.of([[1], []]), pad=PAD, batch_size=1)


@given(st.integers(2, 200), st.integers(1, 30), st.integers(1, 9))
def test_an_unshuffled_stream_predicts_every_token_once(N: int, T: int, B: int) -> None:
    stream = PackedStream(np.arange(N, dtype=np.int32), T=T, batch_size=B, shuffle=False, epochs=1)
    seen: list[int] = []
    for batch in stream:
        assert torch.equal(batch.targets[batch.real], batch.tokens[batch.real] + 1)
        assert (batch.targets[~batch.real] == IGNORED).all()
        seen += batch.targets[batch.real].tolist()
    assert seen == list(range(1, N))


@given(st.integers(0, 50), st.integers(1, 20))
def test_a_shuffled_stream_tiles_the_text_from_a_random_offset(seed: int, T: int) -> None:
    N = 150
    stream = PackedStream(np.arange(N, dtype=np.int32), T=T, batch_size=4, seed=seed, epochs=1)
    batches = list(stream)
    assert all(batch.real.all() for batch in batches)
    tokens = torch.cat([batch.tokens for batch in batches])
    assert torch.equal(torch.cat([batch.targets for batch in batches]), tokens + 1)
    covered = tokens.flatten().sort().values
    assert torch.equal(covered, torch.arange(len(covered)) + covered[0])
    assert covered[0] < T
    assert N - 1 - T <= covered[-1] + 1 <= N - 1


def test_offsets_and_orders_are_uniform() -> None:
    """Each offset 0 ≤ o < T with frequency 1/T within four standard errors."""
    T, epochs = 8, 4000
    stream = PackedStream(np.arange(40, dtype=np.int32), T=T, batch_size=99, epochs=epochs)
    offsets = Counter(int(batch.tokens.min()) for batch in stream)
    error = 4 * (epochs * (1 / T) * (1 - 1 / T)) ** 0.5
    assert set(offsets) == set(range(T))
    assert all(abs(count - epochs / T) < error for count in offsets.values())


def test_short_texts_and_impossible_windows_are_refused() -> None:
    with pytest.raises(DataError, match="at least 8 tokens"):
        PackedStream(np.zeros(7, np.int32), T=4, batch_size=1)
    with pytest.raises(DataError, match="at least 2 tokens"):
        PackedStream(np.zeros(1, np.int32), T=4, batch_size=1, shuffle=False)
    with pytest.raises(ConfigError, match="T=0"):
        PackedStream(np.zeros(9, np.int32), T=0, batch_size=1)


def test_a_batch_moves_whole() -> None:
    batch: Any = next(PackedStream(np.arange(40, dtype=np.int32), T=4, batch_size=2))
    assert {tensor.device.type for tensor in vars(batch.to("meta")).values()} == {"meta"}
