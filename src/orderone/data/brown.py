"""The Brown corpus as NLTK packs it: word/tag, one sentence a line, 500 files ca01 ... cr09."""

import os
import re
from pathlib import Path, PurePosixPath

from orderone.core.errors import DataError
from orderone.data.textfiles import Splits, decoded, lines, split_files, text_files

_FILE = re.compile(r"c[a-r]\d\d")


def brown(folder: Path | None) -> Splits:
    """Sentences of Brown with the tags stripped, whole files held out."""
    path = folder if folder is not None else _nltk_copy()
    files = text_files(path)
    named = {PurePosixPath(name).name: reader for name, reader in files.items()}
    texts = {name: decoded(name, read()) for name, read in named.items() if _FILE.fullmatch(name)}
    if len(texts) < 3:
        raise DataError(
            f"{len(texts)} files of Brown in '{path}'",
            expected="NLTK's brown.zip or its folder, with files ca01, ca02, ...",
            do="run: python -m nltk.downloader brown",
        )
    return split_files({name: [untagged(row) for row in lines(t)] for name, t in texts.items()})


def untagged(sentence: str) -> str:
    """``the/at jury/nn`` as ``the jury``; a word's own slashes (1-1/2/cd) stay."""
    return " ".join(token.rsplit("/", 1)[0] for token in sentence.split())


def _nltk_copy() -> Path:
    homes = [*filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep)), "~/nltk_data"]
    for home in homes:
        for name in ("brown.zip", "brown"):
            path = Path(home).expanduser() / "corpora" / name
            if path.exists():
                return path
    raise DataError(
        "no copy of Brown in NLTK_DATA or ~/nltk_data",
        expected="NLTK's brown.zip or its folder",
        do="run: python -m nltk.downloader brown, or pass folder=",
    )
