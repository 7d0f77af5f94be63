"""Docstrings and sources of the running Python: a corpus that every machine already has."""

import os
import sysconfig
from pathlib import Path

from orderone.core.errors import DataError
from orderone.data.textfiles import Splits, lines, name_hash, split_files

STDLIB_BYTES = 4_000_000
# Tests and character tables are not the library's prose; site-packages differ by machine.
_LEFT_OUT = frozenset({"test", "tests", "site-packages", "dist-packages", "encodings", "lib2to3"})


def stdlib(limit: int | None = None, *, root: Path | None = None) -> Splits:
    """About ``limit`` bytes of the standard library's sources, whole files, indentation kept.

    Files are taken in the order of a hash of their names, so any limit gives a mixed sample, and
    the same one for the same Python.
    """
    root = root if root is not None else Path(sysconfig.get_path("stdlib"))
    limit = STDLIB_BYTES if limit is None else limit
    texts: dict[str, list[str]] = {}
    size = 0
    for name in sorted(_sources(root), key=name_hash):
        if size >= limit:
            break
        try:
            data = (root / name).read_bytes()
            rows = lines(data.decode("utf-8"), indented=True)
        except (OSError, UnicodeDecodeError):
            continue
        if rows and len(data) <= limit // 10:  # no single file outweighs the others, or the limit
            texts[name] = rows
            size += len(data)
    if len(texts) < 3:
        raise DataError(
            f"{len(texts)} readable sources of the running Python in '{root}'",
            expected="at least 3 .py files of the standard library",
            do="raise the limit, use another Python, or name a text file",
        )
    return split_files(texts)


def _sources(root: Path) -> list[str]:
    found: list[str] = []
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        place = Path(here).relative_to(root)
        found += [(place / name).as_posix() for name in names if name.endswith(".py")]
    return found
