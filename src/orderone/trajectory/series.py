"""A series of checkpoints read once: norms, directions, steps, laws, and what is wrong with it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orderone.core.errors import ConfigError, ModelError
from orderone.core.selection import Selection, grouped, selected_names
from orderone.core.sizes import memory_bytes
from orderone.trajectory.checkpoint import Checkpoint, TensorInfo
from orderone.trajectory.cleared import Cleared, cleared
from orderone.trajectory.dynamics import check_rates, dynamics
from orderone.trajectory.findings import Finding, UnreadableError
from orderone.trajectory.growth import growth
from orderone.trajectory.one_pass import Pairing, Pass, Progress
from orderone.trajectory.opened import late_notes
from orderone.trajectory.points import read_points
from orderone.trajectory.sources import open_series
from orderone.trajectory.told import Trajectory

Float = npt.NDArray[np.float64]
Source = str | PathLike[str] | Sequence[str | PathLike[str]]

EVERYTHING = "everything"
_LEAST_MEMORY = 16 << 20


def trajectory(
    source: Source,
    *,
    pairs: Pairing = "all",
    memory: int | str = "512MiB",
    order: str | Sequence[str] | None = None,
    start: float | None = None,
    rates: Mapping[int, float] | None = None,
    selection: Selection | None = None,
    resume: str | PathLike[str] | None = None,
    keep: bool = True,
    progress: Progress | None = None,
) -> Trajectory:
    """The geometry of a whole checkpoint series, read once.

    ``source`` is a folder, a list of them, or a repository on the Hub, of which nothing is written
    to disk without ``keep`` (see ``open_series`` for it and ``order``). Laws are fitted from step
    ``start``, or from where warm-up is found to end; ``rates`` are learning rates by step.
    ``resume`` is a file that a killed pass goes on from.
    """
    if pairs not in ("all", "consecutive"):
        raise ConfigError(f"pairs '{pairs}'", expected="all or consecutive", do="choose one")
    allowed = memory_bytes(memory, least=_LEAST_MEMORY)
    series = open_series(source, order=order, keep=keep, memory=allowed)
    opened, unread = _readable(series.checkpoints)
    findings, notes = [*series.findings, *unread], [*series.notes, *late_notes(opened)]
    if not opened:
        return Trajectory(
            steps=(),
            names=(),
            groups={},
            pairs={},
            laws={},
            dynamics={},
            findings=tuple(findings),
            notes=tuple(notes),
        )
    _check_before(opened[0].step, opened[-1].step, start=start, rates=rates, resume=resume)
    infos = opened[0].tensors()
    groups = groups_of(infos, selection)
    state = None if resume is None else Path(resume)
    wanted = {**groups, EVERYTHING: list(infos)}
    try:
        clear = _read(opened, wanted, pairs, allowed, state, progress)
    finally:
        for checkpoint in opened:
            checkpoint.close()
    if EVERYTHING not in groups and set(groups["total"]) != set(infos):
        notes.append("'total' leaves out embeddings and heads; 'everything' has them")
        groups = {**groups, EVERYTHING: []}
    return _told(clear, list(groups), findings, notes, start=start, rates=rates)


def from_points(
    path: str | PathLike[str],
    *,
    start: float | None = None,
    rates: Mapping[int, float] | None = None,
) -> Trajectory:
    """The same of a table of points, where the checkpoints themselves are gone."""
    points = read_points(Path(path))
    steps = [int(step) for step in points.steps]
    _check_before(steps[0], steps[-1], start=start, rates=rates)
    return Trajectory(
        steps=tuple(steps),
        names=tuple(map(str, steps)),
        groups=points.groups,
        pairs={},
        laws={
            name: growth(points.steps.astype(np.float64), each.norm, start)
            for name, each in points.groups.items()
        },
        dynamics={
            name: dynamics(points.steps, each, None, rates) for name, each in points.groups.items()
        },
        notes=points.notes,
    )


def _check_before(
    first: int,
    last: int,
    *,
    start: float | None,
    rates: Mapping[int, float] | None,
    resume: str | PathLike[str] | None = None,
) -> None:
    """What cannot be done with a series of these steps is refused before it is read, not after."""
    if start is not None and not start <= last:  # NaN is not
        raise ConfigError(
            f"laws from step {start:g} on",
            expected=f"a step up to {last}, the last",
            do="begin earlier, or leave it out",
        )
    if rates is not None:
        check_rates(rates, first=first)
    if resume is not None and not Path(resume).absolute().parent.is_dir():
        raise ConfigError(
            f"resume '{resume}'",
            expected="a file in an existing folder",
            do="make the folder, or choose another",
        )


def groups_of(
    infos: Mapping[str, TensorInfo], selection: Selection | None = None
) -> dict[str, list[str]]:
    """Names by group: total, matrices, gains and biases, layers, and the roles of everything."""
    shapes = {name: info.shape for name, info in infos.items()}
    try:
        total = selected_names(shapes, selection)
    except ModelError:
        if selection is not None:
            raise
        total = list(shapes)  # a checkpoint of embeddings alone
    groups = {"total": total}
    groups |= grouped(total, "kind")
    layers = grouped(total, "layer")
    if set(layers) != {"rest"}:
        groups |= {f"layer.{name}": names for name, names in layers.items()}
    return groups | {f"role.{name}": names for name, names in grouped(shapes, "role").items()}


def _readable(checkpoints: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[Finding]]:
    """Those whose headers can be read: revisions of a repository are opened only now."""
    good: list[Checkpoint] = []
    findings: list[Finding] = []
    for checkpoint in checkpoints:
        try:
            checkpoint.tensors()
        except UnreadableError as error:
            findings.append(error.finding(checkpoint.name))
        else:
            good.append(checkpoint)
    return good, findings


def _read(
    checkpoints: Sequence[Checkpoint],
    groups: Mapping[str, Sequence[str]],
    pairs: Pairing,
    memory: int,
    state: Path | None,
    progress: Progress | None,
) -> Cleared:
    """One pass; another without checkpoints so far off that all others drowned in their sums."""
    walk = Pass(checkpoints, groups, pairing=pairs, memory=memory, state=state)
    clear = cleared(checkpoints, walk.run(progress), pairs, EVERYTHING)
    rest = [each for each in checkpoints if each.name not in clear.drowning]
    if len(rest) == len(checkpoints) or not rest:
        return clear
    again = _read(rest, groups, pairs, memory, state, progress)
    return replace(again, findings=[*clear.drowning.values(), *again.findings])


def _told(
    clear: Cleared,
    names: Sequence[str],
    findings: list[Finding],
    notes: list[str],
    *,
    start: float | None,
    rates: Mapping[int, float] | None,
) -> Trajectory:
    steps = np.array([each.step for each in clear.checkpoints], dtype=np.int64)
    names = names if len(steps) else []
    groups = {name: clear.neighbours[name] for name in names}
    pairs = {name: clear.pairs[name] for name in names if name in clear.pairs}
    several = len(steps) > 1
    return Trajectory(
        steps=tuple(int(step) for step in steps),
        names=tuple(each.name for each in clear.checkpoints),
        groups=groups,
        pairs=pairs,
        unrounded={name: clear.unrounded[name] for name in names if name in clear.unrounded},
        laws={
            name: growth(steps.astype(np.float64), each.norm, start)
            for name, each in groups.items()
        },
        dynamics={
            name: dynamics(steps, each, pairs.get(name), rates)
            for name, each in groups.items()
            if several
        },
        findings=(*findings, *clear.findings),
        notes=tuple(notes),
    )
