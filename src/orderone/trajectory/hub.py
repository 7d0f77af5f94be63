"""The revisions of a Hugging Face Hub repository, one at a time."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from orderone.core.errors import DataError, MissingPackageError
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.mapped import OpenMaps
from orderone.trajectory.safetensors_files import index
from orderone.trajectory.stored import Weights
from orderone.trajectory.weight_files import choose, open_weights

REPOSITORY = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)")


@runtime_checkable
class Remote(Protocol):
    """What is asked of the Hub; ``huggingface_hub`` in earnest, a folder in tests."""

    def revisions(self, repository: str) -> list[str]: ...

    def files(self, repository: str, revision: str) -> list[str]: ...

    def fetch(self, repository: str, revision: str, name: str, into: Path | None) -> Path:
        """The file's place: in ``into``, or in the Hub's own cache if that is None."""
        ...


class Hub:
    """``huggingface_hub``'s API."""

    def __init__(self) -> None:
        try:
            import huggingface_hub
        except ImportError as error:
            needed = "checkpoints on the Hugging Face Hub"
            raise MissingPackageError("huggingface_hub", needed_for=needed) from error
        self._hub: Any = huggingface_hub

    def revisions(self, repository: str) -> list[str]:
        refs = self._hub.HfApi().list_repo_refs(repository)
        return [cast("str", ref.name) for ref in [*refs.branches, *refs.tags]]

    def files(self, repository: str, revision: str) -> list[str]:
        return self._hub.HfApi().list_repo_files(repository, revision=revision)

    def fetch(self, repository: str, revision: str, name: str, into: Path | None) -> Path:
        return Path(self._hub.hf_hub_download(repository, name, revision=revision, local_dir=into))


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One revision: downloaded when opened, and, unless kept, removed when closed."""

    repository: str
    revision: str
    remote: Remote
    keep: bool

    def open(self, maps: OpenMaps) -> tuple[Weights, Path | None]:
        """Its weights, and the folder to remove afterwards."""
        folder = None if self.keep else Path(tempfile.mkdtemp(prefix="orderone-hub-"))
        try:
            return self._open(maps, folder), folder
        except UnreadableError:
            remove(folder)
            raise
        except Exception as error:  # the Hub's errors share no base class
            remove(folder)
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableError("unreadable", f"it cannot be downloaded ({reason})") from error

    def _open(self, maps: OpenMaps, folder: Path | None) -> Weights:
        there = [n for n in self.remote.files(self.repository, self.revision) if "/" not in n]
        choice = choose(there)
        if choice is None:
            raise UnreadableError("unreadable", "no weights among the revision's files")
        got = [self._fetch(name, folder) for name in choice.files]
        if choice.indexed:
            shards = sorted(set(index(got[0]).values()))
            missing = [name for name in shards if name not in there]
            if missing:
                raise UnreadableError("missing-shard", f"the index names '{missing[0]}': not there")
            got += [self._fetch(name, folder) for name in shards]
        return open_weights(got[0].parent, [path.name for path in got], maps)

    def _fetch(self, name: str, folder: Path | None) -> Path:
        return self.remote.fetch(self.repository, self.revision, name, folder)


def revisions(repository: str, remote: Remote | None, *, keep: bool) -> Mapping[str, Revision]:
    """The repository's branches and tags by name."""
    remote = remote or Hub()
    try:
        names = remote.revisions(repository)
    except Exception as error:
        raise DataError(
            f"repository '{repository}' cannot be listed ({type(error).__name__}: {error})",
            expected="a folder, or a model's repository on the Hugging Face Hub",
            do="check the name and the network",
        ) from error
    return {
        name: Revision(repository=repository, revision=name, remote=remote, keep=keep)
        for name in dict.fromkeys(names)
    }


def remove(folder: Path | None) -> None:
    """A download that is not kept."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
