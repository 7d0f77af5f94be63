"""Where a watch's records go beside the run folder: TensorBoard, Weights & Biases, trackio.

Each takes records and sends them a step at a time, when it is flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from orderone.core.errors import ConfigError, MissingPackageError
from orderone.core.record import Record
from orderone.core.run import RunFolder


@runtime_checkable
class Sink(Protocol):
    """Anything that records can be handed to; ``core.record.RecordWriter`` is one."""

    def write_all(self, records: Iterable[Record]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoardSink:
    """Scalars for TensorBoard, in a folder."""

    def __init__(self, folder: Path) -> None:
        _require("tensorboard")
        # torch.utils.tensorboard is torch's own writer of TensorBoard's files.
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def write_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self._writer.add_scalar(_key(record), record.value, record.step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class RunSink:
    """Scalars for a run of wandb or trackio: one ``log`` a step, sent when a later step begins.

    A run that is already there is used and left open; otherwise one is begun, and finished.
    """

    def __init__(self, package: str, folder: Path) -> None:
        _require(package)
        self._package: Any = import_module(package)
        self._ours = not _running(package, self._package)
        if self._ours:
            place = {"dir": str(folder)} if package == "wandb" else {}
            self._package.init(project="orderone", name=folder.name, **place)
        self._step: int | None = None
        self._values: dict[str, float] = {}

    def write_all(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.step != self._step:
                self.flush()
                self._step = record.step
            self._values[_key(record)] = record.value

    def flush(self) -> None:
        if self._values:
            # Our own step, as an axis: wandb's counter may be ahead, and refuses to go back.
            self._package.log({**self._values, "orderone/step": self._step})
            self._values = {}

    def close(self) -> None:
        self.flush()
        if self._ours:
            self._package.finish()


def sink(name: str, folder: Path) -> Sink:
    """The sink of that name, for a run in ``folder``."""
    if name == "tensorboard":
        return TensorBoardSink(folder / "tensorboard")
    return RunSink(name, folder)


def _require_sink(found: object) -> None:
    """What is no sink, or needs a package that is absent, is refused before a folder is made."""
    if isinstance(found, str) and found in ("tensorboard", "wandb", "trackio"):
        _require(found)
    elif not isinstance(found, Sink):
        raise ConfigError(
            f"sink {found!r}",
            expected="tensorboard, wandb or trackio, or an object with write_all, flush and close",
            do="choose one of them; the run folder's records are written in any case",
        )


def _key(record: Record) -> str:
    """``norm/layer/3``; what has no group is its name alone."""
    return "/".join([record.name, *record.labels.values()])


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise MissingPackageError(package, needed_for=f"records in {package}")


def _running(name: str, package: Any) -> bool:
    if name == "wandb":
        return package.run is not None
    # trackio has moved its current run from the package into a module of it.
    holder = package if hasattr(package, "current_run") else import_module("trackio.context_vars")
    return holder.current_run.get() is not None


class Output:
    """All sinks of one watch, and the run folder if it is one that the watch began."""

    def __init__(self, sinks: Sequence[Sink] = (), folder: RunFolder | None = None) -> None:
        self._sinks = tuple(sinks)
        self._folder = folder

    def __bool__(self) -> bool:
        """Whether anybody reads: not on ranks that do not write."""
        return bool(self._sinks)

    def write(self, records: Sequence[Record]) -> None:
        """Hand records to every sink, and have them written."""
        for each in self._sinks:
            each.write_all(records)
            each.flush()

    def close(self, status: str, steps: int) -> None:
        """Close every sink; what was closed before stays closed."""
        sinks, self._sinks = self._sinks, ()
        folder, self._folder = self._folder, None
        for each in sinks:
            each.close()
        if folder is not None:
            folder.finish(status, {"steps": steps})


def output(
    to: str | Path | Sink,
    also: str | Iterable[str | Sink],
    *,
    config: Mapping[str, Any],
    start: int | None,
) -> Output:
    """Sinks by name or as they are; a run folder is begun, or continued, after ``start``."""
    also = [also] if isinstance(also, str) else list(also)
    if not isinstance(to, str | Path):
        if names := [each for each in also if isinstance(each, str)]:
            raise ConfigError(
                f"sink '{names[0]}' beside an object",
                expected="a run folder in to=, which names the run",
                do="give a path, or objects alone",
            )
        for each in (to, *also):
            _require_sink(each)
        return Output([to, *(each for each in also if not isinstance(each, str))])
    for each in also:
        _require_sink(each)
    folder, ours = _run_folder(Path(to), config)
    writer = folder.writer()
    if not ours and start is not None:
        writer.truncate_after(start)
    more = [sink(each, folder.path) if isinstance(each, str) else each for each in also]
    return Output([writer, *more], folder if ours else None)


def _run_folder(path: Path, config: Mapping[str, Any]) -> tuple[RunFolder, bool]:
    """The run folder, and whether it was made here."""
    if (path / "run.json").exists():
        return RunFolder.open(path), False
    return RunFolder.create(path, command="watch", config=config, seed=None), True
