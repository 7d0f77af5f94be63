"""Byte pairs: every text comes back, and no text forges a special token."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderone.core.errors import ConfigError, DataError
from orderone.data.bpe import SMALLEST, BytePairs
from orderone.data.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", "the dog sat on the cat", "def the(cat):"] * 20


@cache
def pairs() -> BytePairs:
    return BytePairs.train(TEXTS, size=300)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = pairs().encode(text)
    assert pairs().decode(ids) == text
    assert max(ids, default=0) < pairs().special.pad


@given(st.lists(st.text(), max_size=5))
def test_many_are_encoded_as_each_alone(texts: list[str]) -> None:
    found = pairs().encode_many(texts)
    assert [row.tolist() for row in map(found.__getitem__, range(len(found)))] == [
        [*pairs().encode(text), pairs().end] for text in texts
    ]
    assert len(found) == len(texts)


@pytest.mark.parametrize("name", ["[pad]", "[start]", "[end]", "[MASK]", "<|endoftext|>"])
def test_text_cannot_forge_a_special_token(name: str) -> None:
    ids = pairs().encode(f"a{name}b")
    assert max(ids) < len(pairs()) - 4
    assert pairs().decode(ids) == f"a{name}b"


def test_special_tokens_come_last_and_read_by_name() -> None:
    special, size = pairs().special, len(pairs())
    assert isinstance(pairs(), Tokenizer)
    assert (special.pad, special.start, special.end, special.mask) == tuple(range(size - 4, size))
    shown = [special.start, *pairs().encode("cat"), special.mask, special.end, special.pad]
    assert pairs().decode(shown) == "[start]cat[MASK]\n[pad]"


def test_training_is_deterministic_and_merges_what_is_frequent() -> None:
    again = BytePairs.train(TEXTS, size=300)
    text = TEXTS[0] + " unseen"
    assert again.encode(text) == pairs().encode(text)
    assert len(pairs().encode("the")) == 1
    assert 260 < len(again) <= 300
    with pytest.raises(ConfigError, match="at least 260"):
        BytePairs.train(TEXTS, size=SMALLEST - 1)


def test_saved_and_loaded(tmp_path: Path) -> None:
    pairs().save(tmp_path)
    loaded = BytePairs.load(tmp_path)
    assert len(loaded) == len(pairs())
    assert loaded.encode(TEXTS[0]) == pairs().encode(TEXTS[0])


def test_agrees_with_transformers_on_the_same_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pairs().save(tmp_path)
    other = transformers.GPT2Tokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), unk_token="!"
    )
    text = "the cat's mat,\n\n  naïve 漢字 \U0001f600"
    assert BytePairs.load(tmp_path).encode(text) == other.encode(text)


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocab\.json and merges\.txt"):
        BytePairs.load(tmp_path)
    pairs().save(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    for damage in (
        {**vocabulary, "the": 100_000},
        {token: i for i, token in enumerate(t for t in vocabulary if t != "~")},
    ):
        (tmp_path / "vocab.json").write_text(json.dumps(damage))
        with pytest.raises(DataError, match="damaged"):
            BytePairs.load(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        BytePairs.load(tmp_path)
