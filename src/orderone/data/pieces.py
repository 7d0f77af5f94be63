"""Sentences as a model's own tokenizer cuts them: word pieces of a folder in Hugging Face format.

``tokenizer.json`` is read by the tokenizers library; older formats by transformers, where it is
installed. Nothing is downloaded, and no code that lies in the folder runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from orderone.core.errors import DataError, MissingPackageError
from orderone.data.vocabulary import Vocabulary

_OLDER = (
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model"),
    *("sentencepiece.bpe.model", "tokenizer_config.json"),
)


class Pieces:
    """Word pieces with the special tokens that the model was trained with, such as [CLS]."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer.json"
        self._fast = _from_file(file) if file.is_file() else None
        self._slow: Any = None if self._fast is not None else _older(folder)

    def __len__(self) -> int:
        """One above the largest id."""
        known = self._fast or self._slow
        ids: dict[str, int] = known.get_vocab()
        return 1 + max(ids.values(), default=-1)

    def encode_many(self, sentences: Sequence[str], *, longest: int) -> list[list[int]]:
        """Ids of each sentence; longer ones are cut, their special tokens kept."""
        if self._fast is None:
            found = self._slow(list(sentences), truncation=True, max_length=longest)
            return found["input_ids"]
        self._fast.enable_truncation(max_length=longest)
        return [each.ids for each in self._fast.encode_batch(list(sentences))]

    def word(self, token: int) -> str:
        known = self._fast.id_to_token if self._fast else self._slow.convert_ids_to_tokens
        return str(known(token))


class Words:
    """Words of the sentences themselves: for a model that was trained on none."""

    def __init__(self, sentences: Sequence[str], *, size: int) -> None:
        self.vocabulary = Vocabulary.build(sentences, size=size)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode_many(self, sentences: Sequence[str], *, longest: int) -> list[list[int]]:
        """Ids of each sentence, cut."""
        return [self.vocabulary.encode(each)[:longest] for each in sentences]

    def word(self, token: int) -> str:
        return self.vocabulary.words[token] if token < len(self) else str(token)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer in any of the usual formats."""
    return any((folder / name).is_file() for name in ("tokenizer.json", *_OLDER))


def _from_file(file: Path) -> tokenizers.Tokenizer:
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f"'{file}' is no tokenizer ({error})",
            expected="what the tokenizers library wrote",
            do="restore the file",
        ) from error
    found.no_padding()
    return found


def _older(folder: Path) -> Any:
    if not has_tokenizer(folder):
        raise DataError(
            f"no tokenizer in '{folder}'",
            expected=f"tokenizer.json, or one of {', '.join(_OLDER[:-1])}",
            do="add it, or name the folder that has it",
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingPackageError(
            "transformers", needed_for="tokenizers without a tokenizer.json"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each tokenizer raises what it likes
        raise DataError(
            f"'{folder}' holds no tokenizer that transformers can load ({error})",
            expected="the files of a tokenizer",
            do="save it again with save_pretrained, which writes tokenizer.json",
        ) from error
