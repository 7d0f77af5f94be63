"""Checkpoints as the geometry reads them: of files at hand, or fetched when first read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Shaped
from torch import Tensor

from orderone.trajectory.checkpoint import Checkpoint, TensorInfo
from orderone.trajectory.hub import Revision
from orderone.trajectory.mapped import OpenMaps
from orderone.trajectory.matching import Cleaned, cleaned, common_notes, matched, reference
from orderone.trajectory.ranged import Windows
from orderone.trajectory.stored import Stored


@dataclass(frozen=True, kw_only=True)
class FileCheckpoint:
    """Tensors in files at hand, under the series' names."""

    step: int
    name: str
    stored: Mapping[str, Stored]
    stamp: str = ""

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: self.stored[name].info for name in sorted(self.stored)}

    def read(self, name: str, start: int, stop: int) -> Shaped[Tensor, " n"]:
        stored = self.stored[name]
        if not 0 <= start <= stop <= stored.info.numel:
            raise IndexError(f"elements {start}..{stop} of {stored.info.numel}")
        return stored.read(start, stop)

    def expect(self, name: str, start: int, stop: int) -> None:
        self.stored[name].expect(start, stop)

    def release(self, name: str, start: int, stop: int) -> None:
        self.stored[name].release(start, stop)

    def close(self) -> None:
        for stored in self.stored.values():
            stored.close()


@dataclass(kw_only=True)
class Wanted:
    """Names and shapes of the first revision that could be read; the others are held to it."""

    shapes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(kw_only=True)
class LazyCheckpoint:
    """A revision that is looked at when first asked, and forgotten when closed."""

    step: int
    name: str
    source: Revision
    wanted: Wanted
    maps: OpenMaps
    windows: Windows
    notes: tuple[str, ...] = ()  # what was matched, known once it was opened
    have: Cleaned | None = None  # likewise
    content: object = None  # likewise: equal for revisions of the same files; None says nothing
    _opened: FileCheckpoint | None = field(default=None, init=False)

    @property
    def stamp(self) -> str:
        return self.source.commit

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._open().tensors()

    def read(self, name: str, start: int, stop: int) -> Shaped[Tensor, " n"]:
        return self._open().read(name, start, stop)

    def expect(self, name: str, start: int, stop: int) -> None:
        self._open().expect(name, start, stop)

    def release(self, name: str, start: int, stop: int) -> None:
        self._open().release(name, start, stop)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _open(self) -> FileCheckpoint:
        if self._opened is None:
            weights, self.content = self.source.open(self.maps, self.windows)
            have = cleaned(weights.tensors)
            shapes = self.wanted.shapes or reference([have])
            tensors, notes = matched(have, shapes)
            self.wanted.shapes, self.notes, self.have = shapes, tuple(notes), have
            self._opened = FileCheckpoint(step=self.step, name=self.name, stored=tensors)
        return self._opened


def same_files(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether both are revisions that serve the very same files, so that nothing need be read."""
    if not isinstance(a, LazyCheckpoint) or not isinstance(b, LazyCheckpoint):
        return False
    return a.content is not None and a.content == b.content


def late_notes(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """What was matched and left out in revisions, which shows only once they are opened."""
    late = [each for each in checkpoints if isinstance(each, LazyCheckpoint)]
    own = [f"'{each.name}': {note}" for each in late for note in each.notes]
    return [*common_notes([each.have for each in late if each.have is not None]), *own]
