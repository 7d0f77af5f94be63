"""Saved positions of all three iterators: bit-identical continuation, alone and over ranks."""

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from orderone.core.errors import ConfigError, DataError
from orderone.data.batches import PackedStream, SentenceBatches
from orderone.data.bpe import SpecialTokens
from orderone.data.denoising import DenoisingBatches
from orderone.data.epochs import Epochs
from orderone.data.sequences import Sequences

SPECIAL = SpecialTokens(pad=900, start=901, end=902, mask=903)


def sentences(seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    return Sequences.of([rng.integers(0, 900, n).tolist() for n in rng.integers(2, 30, 101)])


def by_sentence(**given: Any) -> Epochs[Any]:
    return SentenceBatches(given.pop("text", sentences()), pad=900, batch_size=7, **given)


def by_tokens(**given: Any) -> Epochs[Any]:
    text = given.pop("text", sentences())
    return SentenceBatches(text, pad=900, tokens_per_batch=90, start=901, **given)


def packed(**given: Any) -> Epochs[Any]:
    return PackedStream(given.pop("text", sentences()).tokens, T=11, batch_size=7, **given)


def denoising(**given: Any) -> Epochs[Any]:
    text = given.pop("text", sentences())
    return DenoisingBatches(text, special=SPECIAL, batch_size=3, T=42, **given)


Make = Callable[..., Epochs[Any]]
every = pytest.mark.parametrize("make", [by_sentence, by_tokens, packed, denoising])


def same(one: Any, other: Any) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@every
@pytest.mark.parametrize("taken", [0, 1, 5, 40])
def test_a_restored_iterator_continues_bit_exactly(make: Make, taken: int) -> None:
    running = make(seed=3)
    for _ in islice(running, taken):
        pass
    state = json.loads(json.dumps(running.state_dict()))
    assert len(json.dumps(state)) < 300
    resumed = make(seed=3)
    next(resumed)  # whatever it did before is forgotten
    resumed.load_state_dict(state)
    for one, other in zip(islice(running, 45), islice(resumed, 45), strict=True):
        assert same(one, other)


@every
def test_seeds_and_epochs_differ(make: Make) -> None:
    steps = make().steps
    first = list(islice(make(seed=0), 2 * steps))
    assert not all(map(same, first, islice(make(seed=1), steps)))
    assert not all(map(same, first[:steps], first[steps:]))


@every
def test_ranks_share_out_the_batches_of_one(make: Make) -> None:
    whole = list(make(epochs=1))
    ranks = [list(make(epochs=1, rank=rank, world=3)) for rank in range(3)]
    assert {len(rank) for rank in ranks} == {len(whole) // 3}
    for i, batch in enumerate(whole[: len(whole) // 3 * 3]):
        assert same(batch, ranks[i % 3][i // 3])


@every
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_of_endless_batches_go_on_as_one_does(make: Make, world: int) -> None:
    """Over the ends of epochs, whose batches do not divide among the ranks; resumed ones too."""
    whole = list(islice(make(), 100))
    ranks = [make(rank=rank, world=world) for rank in range(world)]
    for step in range(100 // world):
        found = [next(each) for each in ranks]
        assert all(map(same, found, whole[step * world :]))
    alone = make()
    alone.load_state_dict(ranks[0].state_dict())
    assert same(next(alone), list(islice(make(), 100 // world * world + 1))[-1])


@every
def test_a_run_resumes_on_another_number_of_ranks(make: Make) -> None:
    whole = list(make(epochs=1))
    two = make(epochs=1, rank=1, world=2)
    next(two)
    three = make(epochs=1, rank=2, world=3)
    three.load_state_dict(two.state_dict())
    assert same(next(three), whole[4])


@every
def test_epochs_end_and_a_new_loop_starts_again(make: Make) -> None:
    batches = make(epochs=2)
    once, again = list(batches), list(batches)
    assert len(once) >= 2 * batches.steps - 2  # a packed epoch may lose a batch to its offset
    assert all(map(same, once, again))
    assert len(once) == len(again)


@every
def test_a_position_at_the_end_stays_there_once(make: Make) -> None:
    batches = make(epochs=1)
    total = len(list(batches))
    ended = batches.state_dict()
    resumed = make(epochs=1)
    resumed.load_state_dict(ended)
    assert [len(list(resumed)), len(list(resumed))] == [0, total]


@every
def test_a_position_of_other_data_or_settings_is_refused(make: Make) -> None:
    state = make().state_dict()
    for other in (make(seed=1), make(shuffle=False), make(text=sentences(1))):
        with pytest.raises(ConfigError, match="a position saved with"):
            other.load_state_dict(state)
    for damaged in ({}, {**state, "taken": -1}, {**state, "epoch": "0"}):
        with pytest.raises(DataError, match="no position"):
            make().load_state_dict(damaged)


@every
def test_impossible_ranks_are_refused(make: Make) -> None:
    for given in ({"rank": 1}, {"world": 0}, {"seed": -1}, {"epochs": 0}):
        with pytest.raises(ConfigError):
            make(**given)
    with pytest.raises(DataError, match="1000 ranks"):
        next(make(world=1000))
