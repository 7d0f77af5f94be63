"""Some sentences of a text, evenly spaced: Brown by its name or zip, or any text file."""

from __future__ import annotations

from pathlib import Path

from orderone.core.errors import ConfigError, DataError
from orderone.data.brown import brown
from orderone.data.corpora import NAMES, corpus
from orderone.data.textfiles import cut_long, decoded, lines, text_files

_SENTENCE = 4
"""Words in the shortest line that is taken for a sentence, where there are such."""


def some_sentences(text: str | Path, *, count: int) -> list[str]:
    """``count`` sentences, or all where there are fewer; always the same ones.

    ``text`` is a corpus by name, NLTK's copy of Brown, a text file, a folder or a zip.
    """
    if count < 1:
        raise ConfigError(f"{count} sentences", expected="at least one", do="raise the number")
    found = [line for line in _all(text) if line.strip()]
    if not found:
        raise DataError(
            f"no text in '{text}'", expected="lines that are not blank", do="name another file"
        )
    found = [line for line in found if len(line.split()) >= _SENTENCE] or found
    step = max(1, len(found) // count)
    return found[::step][:count]


def _all(text: str | Path) -> list[str]:
    label, path = str(text), Path(text).expanduser()
    if not label.strip():
        raise DataError("a text without a name", expected="a corpus, or a path", do="name one")
    if label in NAMES or label.startswith("hf:"):
        return corpus(label).train
    if path.name.startswith("brown") and (path.suffix == ".zip" or path.is_dir()):
        return brown(path).train
    read = {name: decoded(name, reader()) for name, reader in text_files(path).items()}
    return cut_long([line for each in read.values() for line in lines(each)])
