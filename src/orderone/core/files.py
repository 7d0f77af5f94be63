"""Files that are whole or absent: written aside, synced, renamed into place."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from orderone.core.errors import RunError


def write_atomically(path: str | Path, data: bytes) -> None:
    """``data`` at ``path``: a reader, or a kill at any moment, sees the old file or the new one."""
    with written_aside(path) as aside:
        aside.write_bytes(data)


@contextmanager
def written_aside(path: str | Path) -> Generator[Path]:
    """A path beside ``path`` to write to; it takes ``path``'s place when the block ends well.

    The parent folder must exist. If the block raises, ``path`` is untouched and the file aside is
    removed; an OSError becomes a RunError.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.aside")
    try:
        yield aside
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def cannot_write(path: str | Path, error: OSError) -> RunError:
    """The one line for a disk that is full, a folder that is missing or may not be written."""
    return RunError(
        f"'{path}' cannot be written: {error.strerror or error}",
        expected="an existing folder with free space that you may write to",
        do="free some space or choose another folder",
    )


def _sync(path: Path) -> None:
    """The file's, or folder's, content on disk: a rename is only safe after it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
