"""The revisions of a Hugging Face Hub repository.

Each is what one commit holds: the commit is found once, so that a branch that moves meanwhile mixes
no weights. Kept, its files are downloaded into the Hub's cache; else weights are read by range as
the pass needs them, and nothing is written to disk.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from orderone.core.errors import DataError, OrderoneError
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.hub_client import Hub, RemoteFile
from orderone.trajectory.mapped import OpenMaps
from orderone.trajectory.ranged import Entry, RangedFiles, Windows, undownloadable
from orderone.trajectory.safetensors_files import index, listed
from orderone.trajectory.stored import Weights
from orderone.trajectory.weight_files import Choice, choose, open_weights

REPOSITORY = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)")


@runtime_checkable
class Remote(Protocol):
    """What is asked of the Hub; ``huggingface_hub`` in earnest, a folder in tests."""

    def revisions(self, repository: str) -> Mapping[str, str]:
        """Commits by the names of branches and tags."""
        ...

    def files(self, repository: str, commit: str) -> Mapping[str, RemoteFile]:
        """The files by their paths, at least those in no folder."""
        ...

    def fetch(self, repository: str, commit: str, name: str) -> Path:
        """The file's place in the Hub's own cache."""
        ...

    def read(
        self, repository: str, commit: str, name: str, size: int, first: int, into: memoryview
    ) -> None:
        """Fill ``into`` with the bytes from ``first`` on of a file of ``size`` bytes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One revision, at the commit that its name stood for."""

    repository: str
    revision: str
    commit: str
    remote: Remote
    keep: bool

    def open(self, maps: OpenMaps, windows: Windows) -> tuple[Weights, object]:
        """Its weights, and what is equal for revisions of the same files; None says nothing."""
        try:
            there = self.remote.files(self.repository, self.commit)
            there = {name: file for name, file in there.items() if "/" not in name}
            choice = choose([*there])
            if choice is None:
                raise UnreadableError("unreadable", "no weights among the revision's files")
            if self.keep:
                return self._downloaded(choice, there, maps)
            return self._ranged(choice, there, windows)
        except OrderoneError:
            raise
        except Exception as error:  # the Hub's errors share no base class
            raise undownloadable(error) from error

    def _ranged(
        self, choice: Choice, there: Mapping[str, RemoteFile], windows: Windows
    ) -> tuple[Weights, object]:
        """Weights that stay where they are."""
        files = RangedFiles(
            {name: self._entry(name, file) for name, file in there.items()}, windows
        )
        weights = open_weights(Path(self.revision), choice.files, files)
        return weights, _content(files.asked, there)

    def _entry(self, name: str, file: RemoteFile) -> Entry:
        def fetch(first: int, into: memoryview) -> None:
            self.remote.read(self.repository, self.commit, name, file.size, first, into)

        content = file.content or (self.commit, name)
        return Entry(size=file.size, content=(file.size, content), fetch=fetch)

    def _downloaded(
        self, choice: Choice, there: Mapping[str, RemoteFile], maps: OpenMaps
    ) -> tuple[Weights, object]:
        """Weights in the Hub's cache."""
        names = [*choice.files, *choice.beside]
        paths = [self.remote.fetch(self.repository, self.commit, name) for name in names]
        if choice.indexed:
            shards = sorted(set(index(paths[0], maps).values()))
            missing = [name for name in shards if name not in there]
            if missing:
                told = f"the index names {listed(missing)}: not there"
                raise UnreadableError("missing-shard", told)
            for name in shards:
                self.remote.fetch(self.repository, self.commit, name)
            names += shards
        return open_weights(paths[0].parent, names, maps), _content(names, there)


def revisions(repository: str, remote: Remote | None, *, keep: bool) -> Mapping[str, Revision]:
    """The repository's branches and tags by name."""
    remote = remote or Hub()
    try:
        commits = remote.revisions(repository)
    except Exception as error:
        raise DataError(
            f"repository '{repository}' cannot be listed ({type(error).__name__}: {error})",
            expected="a folder, or a model's repository on the Hugging Face Hub",
            do="check the name and the network",
        ) from error
    return {
        name: Revision(
            repository=repository, revision=name, commit=commit, remote=remote, keep=keep
        )
        for name, commit in commits.items()
    }


def _content(names: Iterable[str], there: Mapping[str, RemoteFile]) -> object:
    """Equal for equal files under equal names; None where the Hub does not tell."""
    found = sorted((name, there[name].size, there[name].content) for name in set(names))
    return tuple(found) if all(content for _, _, content in found) else None
