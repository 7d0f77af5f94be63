"""Byte-level byte pairs, trained here or read from GPT-2's two files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from orderone.core.errors import ConfigError, DataError
from orderone.data.sequences import Sequences

SPECIAL = ("[pad]", "[start]", "[end]", "[MASK]")
SMALLEST = 256 + len(SPECIAL)  # every byte has a token, so nothing is ever unknown
_AT_ONCE = 8192  # texts a call: bounds the memory that the library's encodings take


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids of [pad], [start], [end] and [MASK], [DYZ23] §II.2.A."""

    pad: int
    start: int
    end: int
    mask: int


class BytePairs:
    """GPT-2's tokeniser: bytes, merged within words; the four special ids come after all others.

    The special tokens are kept from the library on purpose: text that spells ``[MASK]`` is encoded
    as those six bytes, so no text can forge one. GPT-2's 50,257 tokens become 50,261 here; the rest
    of the published 50,265 rows are never looked up.
    """

    def __init__(self, model: models.BPE) -> None:
        self._pairs = tokenizers.Tokenizer(model)
        self._pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]  # settable, the stub says not
        self._pairs.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]  # likewise
        self._base = self._pairs.get_vocab_size()
        base = self._base
        self.special = SpecialTokens(pad=base, start=base + 1, end=base + 2, mask=base + 3)

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int) -> "BytePairs":
        """At most ``size`` tokens in all, the special ones included; fewer for short ``texts``."""
        if size < SMALLEST:
            raise ConfigError(
                f"a byte-pair vocabulary of {size}",
                expected=f"at least {SMALLEST}: 256 bytes and {len(SPECIAL)} special tokens",
                do="raise the size",
            )
        pairs = cls(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        pairs._pairs.train_from_iterator(texts, trainer)
        return cls(pairs._pairs.model)

    @classmethod
    def load(cls, folder: str | Path) -> "BytePairs":
        """From ``vocab.json`` and ``merges.txt``: GPT-2's, or what ``save`` wrote."""
        names = [Path(folder, name) for name in ("vocab.json", "merges.txt")]
        if not all(path.is_file() for path in names):
            raise DataError(
                f"no byte-pair files in '{folder}'",
                expected="vocab.json and merges.txt",
                do="download the two from https://huggingface.co/openai-community/gpt2",
            )
        try:
            pairs = cls(models.BPE.from_file(str(names[0]), str(names[1])))
        except Exception as error:  # the library raises bare Exception
            raise _damaged(folder, str(error)) from error
        known = pairs._pairs.get_vocab()
        if set(known.values()) != set(range(len(known))):
            raise _damaged(folder, "ids are not 0, 1, 2, ...")
        if not known.keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
            raise _damaged(folder, "some bytes have no token")
        return pairs

    def save(self, folder: str | Path) -> None:
        """Writes ``vocab.json`` and ``merges.txt``."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._pairs.model.save(str(folder))

    @property
    def pad(self) -> int:
        return self.special.pad

    @property
    def start(self) -> int:
        return self.special.start

    @property
    def end(self) -> int:
        return self.special.end

    def __len__(self) -> int:
        return self._base + len(SPECIAL)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, every one below the special ids."""
        return self._pairs.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Iterable[str], *, end: bool = True) -> Sequences:
        """Ids of each text, followed by [end] unless told otherwise."""
        tail = [self.end] if end else []
        source = iter(texts)
        return Sequences.joined(self._encoded(some, tail) for some in _chunks(source))

    def _encoded(self, texts: list[str], tail: list[int]) -> Sequences:
        found = self._pairs.encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids + tail for encoding in found]
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        flat = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return Sequences(tokens=flat, offsets=np.append(np.int64(0), np.cumsum(lengths)))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, with [end] as the end of a line and other special tokens by name."""
        names = {self._base + i: name for i, name in enumerate(SPECIAL)} | {self.end: "\n"}
        parts: list[str] = []
        ids = [int(token) for token in tokens]
        for special, group in groupby(ids, key=lambda i: i in names):
            if special:
                parts += [names[i] for i in group]
            else:
                parts.append(self._pairs.decode(list(group), skip_special_tokens=False))
        return "".join(parts)


def _chunks(source: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(source, _AT_ONCE)):
        yield some


def _damaged(folder: str | Path, why: str) -> DataError:
    return DataError(
        f"the byte-pair files in '{folder}' are damaged ({why})",
        expected="GPT-2's vocab.json and merges.txt",
        do="download or train them again",
    )
