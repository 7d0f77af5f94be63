"""The flat form of many sequences against lists of lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orderone.data.sequences import Sequences, fingerprint, runs

rows = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=12)


def listed(found: Sequences) -> list[list[int]]:
    return [found[i].tolist() for i in range(len(found))]


@given(rows, rows)
def test_rows_come_back_and_join(first: list[list[int]], second: list[list[int]]) -> None:
    found = Sequences.of(first)
    assert listed(found) == first
    assert found.lengths.tolist() == [len(row) for row in first]
    assert listed(Sequences.joined([found, Sequences.of(second)])) == first + second


@given(rows, st.integers(1, 5))
def test_cut_rows_are_the_pieces_of_each(original: list[list[int]], room: int) -> None:
    pieces = [row[i : i + room] for row in original for i in range(0, len(row), room)]
    assert listed(Sequences.of(original).cut(room)) == pieces


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_runs_are_ranges(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    assert runs(starts, lengths).tolist() == [i for s, n in pairs for i in range(s, s + n)]


def test_another_corpus_has_another_fingerprint() -> None:
    tokens = np.arange(200_000, dtype=np.int32)
    assert fingerprint(tokens) == fingerprint(tokens.copy())
    assert fingerprint(tokens) != fingerprint(tokens + np.int32(1))
