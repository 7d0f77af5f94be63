"""Corpora by name or path: sentences for training, validation and test."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orderone.core.errors import ConfigError, DataError
from orderone.data.brown import brown
from orderone.data.hub import hub
from orderone.data.penn import penn_from_package
from orderone.data.stdlib import stdlib
from orderone.data.textfiles import (
    FILES_TO_SPLIT,
    Splits,
    cut_long,
    decoded,
    lines,
    split_files,
    split_lines,
    text_files,
)

NAMES = ("penn", "wikitext-2", "brown", "stdlib")
# wiki.train.tokens, ptb.valid.txt, validation.raw, dev.txt, ...
_SPLIT_OF_FILE = {
    "train": re.compile(r"(^|[._-])train(ing)?([._-]|$)", re.IGNORECASE),
    "validation": re.compile(r"(^|[._-])(valid(ation)?|val|dev)([._-]|$)", re.IGNORECASE),
    "test": re.compile(r"(^|[._-])test([._-]|$)", re.IGNORECASE),
}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Lines of text in their published or, failing that, a reproducible split.

    A line is a sentence for Penn and Brown, a paragraph or heading for WikiText, else a line.
    ``note`` says where the split comes from.
    """

    name: str
    train: list[str] = field(repr=False)
    validation: list[str] = field(repr=False)
    test: list[str] = field(repr=False)
    note: str


def corpus(
    name: str | Path, *, folder: str | Path | None = None, limit: int | None = None
) -> Corpus:
    """The corpus ``penn``, ``wikitext-2``, ``brown``, ``stdlib``, ``hf:NAME``, or that at a path.

    ``folder`` is where a named corpus lies (for Brown, NLTK's zip too); ``limit`` is about how many
    bytes of ``stdlib`` to take, 4 MB unless told.
    """
    label = str(name)
    if limit is not None and (label != "stdlib" or limit < 1):
        raise ConfigError(
            f"limit={limit} for corpus '{label}'",
            expected="a positive limit, with corpus 'stdlib' only",
            do="leave limit out",
        )
    place = None if folder is None else Path(folder).expanduser()
    found = stdlib(limit) if label == "stdlib" else _splits(label, place)
    for split in ("train", "validation", "test"):
        if not getattr(found, split):
            raise DataError(
                f"no {split} text in corpus '{label}'",
                expected="at least one line that is not blank",
                do="check its files",
            )
    train, validation, test, note = found
    return Corpus(name=label, train=train, validation=validation, test=test, note=note)


def _splits(label: str, folder: Path | None) -> Splits:
    if label == "penn":
        return penn_from_package() if folder is None else usual_files(folder)
    if label == "wikitext-2":
        return usual_files(_wikitext_folder(folder))
    if label == "brown":
        return brown(folder)
    if label.startswith("hf:"):
        return hub(label.removeprefix("hf:"))
    path = Path(label).expanduser()
    if folder is not None:
        path = folder / path
    if (
        not label.strip()
        or "\0" in label
        or (not re.search(r"[./\\]", label) and not path.exists())
    ):
        raise DataError(
            f"no corpus or file named '{label}'",
            expected=f"one of {', '.join(NAMES)}, hf:NAME, or a path",
            do="check the name",
        )
    return from_path(path)


def from_path(path: Path) -> Splits:
    """A text file, a zip, or a folder: with the usual three files, or split here."""
    files = text_files(path)
    if sum(map(bool, _by_split(files).values())) >= 2:
        return usual_files(path)
    texts = {name: cut_long(lines(decoded(name, read()))) for name, read in files.items()}
    if len(texts) >= FILES_TO_SPLIT:
        return split_files(texts)
    return split_lines([row for rows in texts.values() for row in rows], name=str(path))


def usual_files(folder: Path) -> Splits:
    """The three files that carry train, valid and test in their names, whatever else is there."""
    files = text_files(folder)
    named = _by_split(files)
    for split, names in named.items():
        if len(names) != 1:
            raise DataError(
                f"{len(names)} {split} files in '{folder}'" + (f": {names}" if names else ""),
                expected="one each of train, valid and test (wiki.train.tokens, ptb.valid.txt)",
                do="keep one of each, or name a single file to have it split here",
            )
    train, validation, test = (lines(decoded(n, files[n]())) for (n,) in named.values())
    return Splits(train, validation, test, "the corpus's own files")


def _by_split(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by the split they speak of, the outermost files only: a zip may wrap a folder."""
    paths = {name: PurePosixPath(name) for name in names}
    depth = min(len(path.parts) for path in paths.values())
    outer = {name: path for name, path in paths.items() if len(path.parts) == depth}
    return {
        split: [name for name, path in outer.items() if pattern.search(path.name)]
        for split, pattern in _SPLIT_OF_FILE.items()
    }


def _wikitext_folder(folder: Path | None) -> Path:
    if folder is None:
        raise DataError(
            "corpus 'wikitext-2' without a folder",
            expected="folder= with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
            do="pass the unpacked folder, or name hf:Salesforce/wikitext/wikitext-2-v1",
        )
    return folder
