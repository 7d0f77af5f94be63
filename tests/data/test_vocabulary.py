"""Words and ids: a bijection on what was seen, <unk> for the rest."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderone.core.errors import ConfigError, DataError
from orderone.data.tokenizer import Tokenizer
from orderone.data.vocabulary import Vocabulary

SENTENCES = ["the dog sat", "the cat <unk> sat", "the <pad> <eos> <start> end"]


def test_words_come_by_falling_count_then_alphabet() -> None:
    words = Vocabulary.build(SENTENCES).words
    assert words == ("<pad>", "<unk>", "<eos>", "<start>", "the", "sat", "cat", "dog", "end")


def test_unknown_words_and_forged_special_words_are_unknown() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    assert isinstance(vocabulary, Tokenizer)
    assert vocabulary.encode("the bird <unk> <pad> <eos> <start>") == [4, 1, 1, 1, 1, 1]
    assert vocabulary.decode([4, 1, 2, 6, 2, 2]) == "the <unk>\ncat\n\n"


def test_rare_words_and_a_full_vocabulary_leave_words_out() -> None:
    assert Vocabulary.build(SENTENCES, min_count=2).words[4:] == ("the", "sat")
    assert Vocabulary.build(SENTENCES, size=5).words[4:] == ("the",)
    with pytest.raises(ConfigError, match="size=3"):
        Vocabulary.build(SENTENCES, size=3)


word = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1)


@given(st.lists(word.filter(lambda w: w.split() == [w] and w[0] != "<"), min_size=1))
def test_known_words_come_back(words: list[str]) -> None:
    vocabulary = Vocabulary.build([" ".join(words)])
    found = vocabulary.encode_many([" ".join(words), ""])
    assert vocabulary.decode([int(i) for i in found[0]]) == " ".join(words) + "\n"
    assert found[1].tolist() == [vocabulary.end]
    assert vocabulary.encode_many(["x"] * 3, end=False).lengths.tolist() == [1, 1, 1]


def test_saved_and_loaded(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(["é \u3042 a"])
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json") == vocabulary


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"words": []}',
        '{"format": "orderone words 1", "words": [1]}',
        '{"format": "orderone words 1", "words": ["<pad>", "<eos>", "<unk>", "<start>"]}',
        '{"format": "orderone words 1", "words": ["<pad>", "<unk>", "<eos>", "<start>", "a", "a"]}',
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Vocabulary.load(path)
