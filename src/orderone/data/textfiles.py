"""Text read from a file, a folder or a zip, in place: size-capped, UTF-8 or refused in one line."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orderone.core.errors import DataError

TEXT_SUFFIXES = frozenset({"", ".txt", ".text", ".md", ".rst", ".tex", ".tokens", ".raw", ".py"})
MAX_BYTES = 2 << 30  # of one file once unpacked: what a small zip may claim to hold
FILES_TO_SPLIT = 20  # from here on, whole files are held out
HELD_OUT = 0.05  # of lines or files, for validation and again for test
LONGEST_LINE = 10_000  # characters; some corpora are one line of a hundred million

# What zipfile raises for members that are encrypted, cut short, packed in odd ways or plain wrong.
_DAMAGE = (OSError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)

Reader = Callable[[], bytes]


class Splits(NamedTuple):
    """Lines for training, validation and test, and a word on where the split comes from."""

    train: list[str]
    validation: list[str]
    test: list[str]
    note: str


def text_files(path: Path) -> dict[str, Reader]:
    """Readers of the text files at ``path`` by name, sorted; hidden files are left out."""
    try:
        if path.is_dir():
            found = _in_folder(path)
        elif path.is_file():
            packed = path.suffix.lower() == ".zip" or zipfile.is_zipfile(path)
            found = _in_zip(path) if packed else {path.name: _file(path)}
        else:
            what = "something that is no file" if path.exists() else "nothing"
            raise DataError(
                f"{what} at '{path}'", expected="a text file, folder or zip", do="check the path"
            )
    except OSError as error:
        raise DataError(
            f"'{path}' cannot be opened ({error.strerror or error})",
            expected="a readable text file, folder or zip",
            do="check the path and its permissions",
        ) from error
    if not found:
        raise DataError(
            f"no text file in '{path}'",
            expected="files ending in " + ", ".join(sorted(TEXT_SUFFIXES - {""})),
            do="name the file itself, or rename the files",
        )
    return dict(sorted(found.items()))


def decoded(name: str, data: bytes) -> str:
    """``data`` as UTF-8 text; a binary or otherwise encoded file is refused."""
    zero = data.find(b"\0")
    if zero >= 0:
        raise DataError(
            f"'{name}' is binary (a zero byte at {zero})",
            expected="UTF-8 text",
            do="convert it to UTF-8, or leave it out",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{name}' is not UTF-8 (byte {error.start}: {data[error.start]:#04x})",
            expected="UTF-8 text",
            do=f"convert it, for example: iconv -f latin1 -t utf8 {name}",
        ) from error


def lines(text: str, *, indented: bool = False) -> list[str]:
    """Lines of ``text`` that are not blank, stripped (on the right only where ``indented``).

    Split at line feeds alone: ``str.splitlines`` also breaks at form feeds and Unicode separators,
    which stand inside sentences of real corpora.
    """
    rows = text.replace("\r\n", "\n").split("\n")
    stripped = (row.rstrip() if indented else row.strip() for row in rows)
    return [row for row in stripped if row]


def cut_long(rows: list[str]) -> list[str]:
    """``rows`` with those above LONGEST_LINE cut into pieces, at a space where there is one."""
    if all(len(row) <= LONGEST_LINE for row in rows):
        return rows
    return [piece for row in rows for piece in _pieces(row)]


def split_lines(rows: list[str], *, name: str) -> Splits:
    """The last 5 % of ``rows`` as test, the 5 % before them as validation."""
    held = max(1, round(HELD_OUT * len(rows)))
    if len(rows) < 3:
        raise DataError(
            f"{len(rows)} lines of text in '{name}'",
            expected="at least 3, one each for training, validation and test",
            do="add text, or give a folder with train.txt, valid.txt and test.txt",
        )
    note = f"split here: last {held} lines are test, {held} before them validation"
    return Splits(rows[: -2 * held], rows[-2 * held : -held], rows[-held:], note)


def split_files(files: dict[str, list[str]]) -> Splits:
    """Whole files held out, 5 % each, ranked by the SHA-256 of their names."""
    ranked = sorted(files, key=name_hash)
    held = max(1, round(HELD_OUT * len(ranked)))
    parts = (ranked[: -2 * held], ranked[-2 * held : -held], ranked[-held:])
    train, validation, test = ([row for name in sorted(p) for row in files[name]] for p in parts)
    note = f"split here by file: {held} of {len(ranked)} files for validation, {held} for test"
    return Splits(train, validation, test, note)


def name_hash(name: str) -> bytes:
    """A fixed order of names that has nothing to do with their alphabet."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _in_folder(folder: Path) -> dict[str, Reader]:
    found: dict[str, Reader] = {}
    for here, folders, names in os.walk(folder):  # does not follow links to folders: no cycles
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(here, name)
            if _is_text(name) and path.is_file():
                found[path.relative_to(folder).as_posix()] = _file(path)
    return found


def _in_zip(path: Path) -> dict[str, Reader]:
    # Members are read in place and their names only label them: nothing is ever written by name.
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
    except zipfile.BadZipFile as error:
        raise DataError(
            f"'{path}', a zip that cannot be read ({error})",
            expected="a whole zip",
            do="fetch or pack it again",
        ) from error
    kept = [member for member in members if _is_text(PurePosixPath(member.filename).name)]
    _refuse_huge(sum(member.file_size for member in kept), str(path))
    return {member.filename: _member(path, member) for member in kept}


def _is_text(name: str) -> bool:
    return not name.startswith(".") and PurePosixPath(name).suffix.lower() in TEXT_SUFFIXES


def _file(path: Path) -> Reader:
    def read() -> bytes:
        try:
            _refuse_huge(path.stat().st_size, str(path))
            return path.read_bytes()
        except OSError as error:
            raise DataError(
                f"'{path}' cannot be read ({error.strerror or error})",
                expected="a readable text file",
                do="check its permissions",
            ) from error

    return read


def _member(path: Path, member: zipfile.ZipInfo) -> Reader:
    def read() -> bytes:
        try:
            # Unpacks no more than the header says, which was held against the cap above.
            with zipfile.ZipFile(path) as archive:
                return archive.read(member)
        except _DAMAGE as error:
            raise DataError(
                f"'{member.filename}' in '{path}' cannot be unpacked ({error})",
                expected="an unencrypted, undamaged zip",
                do="unpack it yourself and name the folder",
            ) from error

    return read


def _refuse_huge(size: int, name: str) -> None:
    if size > MAX_BYTES:
        raise DataError(
            f"'{name}' holds {size:,} bytes",
            expected=f"at most {MAX_BYTES:,}",
            do="split it into a folder of smaller files",
        )


def _pieces(row: str) -> list[str]:
    pieces: list[str] = []
    start = 0
    while len(row) - start > LONGEST_LINE:
        stop = row.rfind(" ", start + 1, start + LONGEST_LINE) + 1
        stop = stop or start + LONGEST_LINE
        pieces.append(row[start:stop].strip())
        start = stop
    return [piece for piece in [*pieces, row[start:].strip()] if piece]
