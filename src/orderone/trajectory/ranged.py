"""Files read by range from afar: nothing of them is ever written to disk.

Of each file the stretch that was fetched last stays in memory, its window. What it holds is not
fetched again; reads that go forwards fetch further ahead each time, reads that jump take little, so
that every byte is fetched about once. All windows together keep within a bound.
"""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from orderone.core.errors import OrderoneError
from orderone.trajectory.byte_files import ByteFile
from orderone.trajectory.findings import UnreadableError

# Fills ``into`` with the bytes from ``first`` on, all of them, or raises.
Fetch = Callable[[int, memoryview], None]

_LEAST = 64 << 10  # a request takes as long for this as for one byte
_MOST = 4 << 20
_AT_ONCE = 8  # requests
_ALIGNED = 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file far away: its size, how to read it, and what is equal for files of equal bytes."""

    size: int
    content: Hashable
    fetch: Fetch


class Windows:
    """The windows of all files of a series: the least recently used give way.

    A quarter of ``memory`` is theirs. As many files as there are ``checkpoints`` are read in turn,
    so none reads further ahead than its share.
    """

    def __init__(self, *, memory: int, checkpoints: int) -> None:
        self.budget = memory // 4
        self.share = self.budget // max(1, checkpoints)
        self.ahead = max(4096, min(_MOST, self.share))
        self._held: OrderedDict[Distant, int] = OrderedDict()
        self._files: dict[Hashable, Distant] = {}
        self._pool: ThreadPoolExecutor | None = None

    def of(self, entry: Entry) -> "Distant":
        """The file's bytes; files of equal bytes share them."""
        return self._files.setdefault(entry.content, Distant(entry.size, entry.fetch, self))

    def submit(self, load: Callable[[], "Window"]) -> "Future[Window]":
        self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="orderone-hub")
        return self._pool.submit(load)

    def hold(self, file: "Distant", nbytes: int) -> None:
        self._held[file] = nbytes
        self._held.move_to_end(file)
        while sum(self._held.values()) > self.budget:
            oldest, _ = self._held.popitem(last=False)
            oldest.forget()

    def drop(self, file: "Distant") -> None:
        self._held.pop(file, None)


@dataclass(frozen=True)
class Window:
    """Bytes from ``first`` on."""

    first: int
    content: UInt8[Tensor, " n"]

    @property
    def last(self) -> int:
        return self.first + len(self.content)

    def covers(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last


_NOTHING = Window(0, torch.empty(0, dtype=torch.uint8))


class Distant:
    """Bytes of a file far away, and the window on them.

    Only the thread that reads touches the window; one that fetches ahead hands its own over.
    """

    def __init__(self, size: int, fetch: Fetch, windows: Windows) -> None:
        self.size = size
        self.share = windows.share
        self._fetch = fetch
        self._windows = windows
        self._window = _NOTHING
        self._reached: tuple[int, int] | None = None  # the last fetch, also when its window is gone
        self._ahead = min(_LEAST, windows.ahead)
        self._coming: Future[Window] | None = None
        self._failed: UnreadableError | None = None

    def get(self, first: int, last: int) -> UInt8[Tensor, " n"]:
        """Bytes first..last, which must exist."""
        if self._failed is not None:  # what failed after many attempts is not asked for again
            again = self._failed
            raise UnreadableError(again.kind, again.detail, passing=again.passing)
        try:
            window = self._arrived()
            if not window.covers(first, last):
                window = self._take(self._plan(first, last)())
        except UnreadableError as error:
            self._failed = error
            raise
        return window.content[first - window.first : last - window.first]

    def expect(self, first: int, last: int) -> None:
        """Begin to fetch these bytes, which are read next."""
        if self._failed is None and self._coming is None and not self._window.covers(first, last):
            self._coming = self._windows.submit(self._plan(first, last))

    def forget(self) -> None:
        """The window goes; what was read of it stays valid."""
        self._window = _NOTHING

    def close(self) -> None:
        if self._coming is not None and not self._coming.cancel():
            self._coming.exception()  # it is on its way: wait for its end, whatever that is
        self._coming = None
        self._windows.drop(self)
        self.forget()

    def _arrived(self) -> Window:
        if self._coming is not None:
            coming, self._coming = self._coming, None
            self._take(coming.result())
        return self._window

    def _take(self, window: Window) -> Window:
        self._window, self._reached = window, (window.first, window.last)
        self._windows.hold(self, len(window.content))
        return window

    def _plan(self, first: int, last: int) -> Callable[[], Window]:
        """What fetches bytes first..last: more than these if they are few, less what is there."""
        least, window = min(_LEAST, self._windows.ahead), self._window
        onward = self._reached and self._reached[0] <= first <= self._reached[1] + least
        self._ahead = min(2 * self._ahead, self._windows.ahead) if onward else least
        if not onward and last > self.size - least:
            first = max(0, min(first, self.size - least))  # tables at the end are read backwards
        known = window if window.first <= first < window.last else _NOTHING
        # A few bytes more than there are would be a request of their own, and so would the next.
        last = min(self.size, max(last, first + self._ahead, known.last + least))
        return lambda: self._load(first, last, known)

    def _load(self, first: int, last: int, known: Window) -> Window:
        pad = first % _ALIGNED  # so that what is aligned in the file is aligned in memory
        have = max(0, known.last - first)
        try:
            # A map of its own goes back to the system with the window; torch.empty's would not.
            own = mmap.mmap(-1, pad + last - first, access=mmap.ACCESS_COPY)
            content = torch.frombuffer(own, dtype=torch.uint8)[pad:]
            if have:
                content[:have] = known.content[first - known.first :]
            self._fetch(first + have, content.numpy().data[have:])
        except OrderoneError:
            raise
        except Exception as error:  # the Hub's errors share no base class
            raise undownloadable(error) from error
        return Window(first, content)


class RangedFile(ByteFile):
    """A file far away under its own path."""

    near = False

    def __init__(self, path: Path, distant: Distant) -> None:
        self.path = path
        self.size = distant.size
        self.share = distant.share
        self._distant = distant

    def piece(self, first: int, last: int) -> UInt8[Tensor, " n"]:
        return self._distant.get(first, last)

    def bytes_at(self, first: int, last: int) -> memoryview:
        self.check(first, last)
        if first == last:
            return memoryview(b"")
        return self._distant.get(first, last).numpy().data

    def expect(self, first: int, last: int) -> None:
        if 0 <= first < last <= self.size:
            self._distant.expect(first, last)

    def close(self) -> None:
        self._distant.close()


class RangedFiles:
    """The files of one revision by name."""

    def __init__(self, entries: Mapping[str, Entry], windows: Windows) -> None:
        self._entries = entries
        self._windows = windows
        self.asked: set[str] = set()

    def file(self, path: Path) -> RangedFile:
        if path.name not in self._entries:
            raise UnreadableError("missing-shard", f"'{path.name}' is not there")
        self.asked.add(path.name)
        return RangedFile(path, self._windows.of(self._entries[path.name]))

    def has(self, path: Path) -> bool:
        return path.name in self._entries


def undownloadable(error: Exception) -> UnreadableError:
    """Whatever went wrong on the way, as a finding."""
    reason = f"{type(error).__name__}: {error}"
    return UnreadableError("unreadable", f"it cannot be downloaded ({reason})", passing=True)
