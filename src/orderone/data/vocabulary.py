"""Word-level vocabulary: built on the training sentences, ``<unk>`` for every other word."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orderone.core.errors import ConfigError, DataError
from orderone.data.sequences import Sequences

PAD, UNK, EOS, START = SPECIAL = ("<pad>", "<unk>", "<eos>", "<start>")
_FORMAT = "orderone words 1"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Words between white space, by id: the four special tokens, then by falling count.

    A corpus may spell ``<unk>`` itself, as Penn and WikiText-2 do, and gets its id. Another special
    token spelt in text is an unknown word: text cannot forge padding, a start or an end.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:4] != SPECIAL or len(set(self.words)) != len(self.words):
            raise DataError(
                f"a vocabulary that begins {list(self.words[:4])} or repeats words",
                expected=f"{', '.join(SPECIAL)}, then every word once",
                do="build it again",
            )

    @classmethod
    def build(
        cls, sentences: Iterable[str], *, min_count: int = 1, size: int | None = None
    ) -> "Vocabulary":
        """Words of ``sentences`` seen at least ``min_count`` times, the most frequent first.

        ``size`` caps the whole vocabulary, the four special tokens included.
        """
        if min_count < 1 or (size is not None and size < len(SPECIAL)):
            raise ConfigError(
                f"min_count={min_count}, size={size}",
                expected="min_count of 1 or more and a size of 4 or more",
                do="change them",
            )
        counts: Counter[str] = Counter()
        for sentence in sentences:
            counts.update(sentence.split())
        for special in SPECIAL:
            del counts[special]
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words = [word for word, count in ranked if count >= min_count]
        return cls(words=(*SPECIAL, *words)[:size])

    @property
    def pad(self) -> int:
        return 0

    @property
    def unknown(self) -> int:
        """Id of ``<unk>``."""
        return 1

    @property
    def end(self) -> int:
        return 2

    @property
    def start(self) -> int:
        return 3

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words) if word not in (PAD, EOS, START)}

    def encode(self, text: str) -> list[int]:
        """Ids of the words of ``text``."""
        find, unknown = self._ids.get, self.unknown
        return [find(word, unknown) for word in text.split()]

    def encode_many(self, texts: Iterable[str], *, end: bool = True) -> Sequences:
        """Ids of each text, followed by ``<eos>`` unless told otherwise."""
        tail = [self.end] if end else []
        return Sequences.of(self.encode(text) + tail for text in texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """The words of ``tokens``, with ``<eos>`` as the end of a line."""
        words = (self.words[int(token)] for token in tokens)
        text = " ".join("\n" if word == EOS else word for word in words)
        return text.replace(" \n", "\n").replace("\n ", "\n")

    def save(self, path: str | Path) -> None:
        """As JSON."""
        text = json.dumps({"format": _FORMAT, "words": self.words}, ensure_ascii=False)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """What ``save`` wrote."""
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _not_a_vocabulary(path, str(error)) from error
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise _not_a_vocabulary(path, "no such format")
        words = found.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _not_a_vocabulary(path, "its words are not strings")
        return cls(words=tuple(words))


def _not_a_vocabulary(path: str | Path, why: str) -> DataError:
    return DataError(
        f"'{path}' is no vocabulary ({why})",
        expected=f'JSON with format "{_FORMAT}" and a list of words',
        do="write it with Vocabulary.save",
    )
