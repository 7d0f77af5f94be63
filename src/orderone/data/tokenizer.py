"""What word vocabularies and byte pairs have in common."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from orderone.data.sequences import Sequences


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids below ``len(tokenizer)`` and back.

    ``pad``, ``start`` and ``end`` are ids that no text encodes to, whatever words stand in it.
    """

    @property
    def pad(self) -> int:
        """Fills a batch; never a target."""
        ...

    @property
    def start(self) -> int:
        """May be put before a sentence, so that its first word is predicted too."""
        ...

    @property
    def end(self) -> int:
        """Ends a sentence."""
        ...

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without an end."""
        ...

    def encode_many(self, texts: Iterable[str], *, end: bool = True) -> Sequences:
        """Ids of each text, followed by ``end`` unless told otherwise."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``; ``end`` reads as a line feed, other special tokens as their names."""
        ...
