"""A series of checkpoints read once: norms, directions, steps, laws, and what is wrong with it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from orderone.core.errors import ConfigError, ModelError
from orderone.core.record import Record
from orderone.core.selection import Selection, grouped, selected_names
from orderone.trajectory.checkpoint import Checkpoint, TensorInfo
from orderone.trajectory.cleared import Cleared, cleared
from orderone.trajectory.dynamics import Dynamics, check_rates, dynamics
from orderone.trajectory.findings import Finding, UnreadableError
from orderone.trajectory.geometry import Neighbours, Pairs
from orderone.trajectory.growth import Growth, growth
from orderone.trajectory.one_pass import Pairing, Pass, Progress
from orderone.trajectory.opened import late_notes
from orderone.trajectory.points import read_points
from orderone.trajectory.sources import open_series

Float = npt.NDArray[np.float64]
Source = str | PathLike[str] | Sequence[str | PathLike[str]]

EVERYTHING = "everything"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_LEAST_MEMORY = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What a series tells; checkpoints that are wrong are in ``findings`` and nowhere else."""

    steps: tuple[int, ...]
    names: tuple[str, ...]
    groups: Mapping[str, Neighbours]
    pairs: Mapping[str, Pairs]
    """Every pair of checkpoints by group; empty if only neighbours were read."""
    unrounded: Mapping[str, Float] = field(default_factory=dict[str, Float])
    """‖δ‖ without what low precision adds, for groups where that is much."""
    laws: Mapping[str, Growth]
    dynamics: Mapping[str, Dynamics]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """What was found, first the whole, then what differs from it."""
        said: list[str] = []
        for name in self.headline:
            said.append(f"{name}: {self.laws[name].sentence}.")
        for name in [each for each in self.headline[:1] if each in self.dynamics]:
            said.append(f"{name}: {self.dynamics[name].sentence}.")
            cosine = self.groups[name].cosine_next
            if len(cosine) and np.isfinite(cosine[-1]):
                said.append(
                    f"{name}: the cosine of successive checkpoints goes from {cosine[0]:.4f} "
                    f"to {cosine[-1]:.6f}."
                )
        wrong = len(self.findings)
        said.append(
            f"{wrong} thing{'s' * (wrong != 1)} wrong with the series."
            if wrong
            else "Nothing is wrong with the files."
        )
        return said

    @property
    def headline(self) -> list[str]:
        """Groups to speak of: the whole; matrices, gains and biases apart; a table's towers."""
        known = ["total", "matrices", "gains", "biases"]
        spoken = [name for name in known if name in self.laws]
        return spoken or [name for name in self.laws if "_layer_" not in name][:4]

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints; a number that does not exist is None."""
        groups = {
            name: {
                "norm": _numbers(each.norm),
                "cosine_next": _numbers(each.cosine_next),
                "one_minus_cosine_next": _numbers(each.one_minus_cosine),
                "step_norm": _numbers(each.step_norm),
                "alignment": _numbers(each.alignment),
            }
            for name, each in self.groups.items()
        }
        for name, steps in self.unrounded.items():
            groups[name]["step_norm_unrounded"] = _numbers(steps)
        for name in self.pairs:
            groups[name] |= {what: _numbers(x) for what, x in self._to_ends(name).items()}
        return {
            "steps": list(self.steps),
            "groups": groups,
            "laws": {name: _finite(each.as_json()) for name, each in self.laws.items()},
            "dynamics": {name: _finite(each.as_json()) for name, each in self.dynamics.items()},
            "effective_dimension": {
                name: each.effective_dimension for name, each in self.pairs.items()
            },
            "findings": [
                {"checkpoint": f.checkpoint, "kind": f.kind, "detail": f.detail}
                for f in self.findings
            ],
            "notes": list(self.notes),
        }

    def records(self) -> list[Record]:
        """One record a number that exists, labelled by group."""
        found: list[Record] = []
        for group, each in self.groups.items():
            series = {
                "norm": each.norm,
                "cosine_next": each.cosine_next,
                "step_norm": each.step_norm,
                "alignment": each.alignment,
            }
            if group in self.unrounded:
                series["step_norm_unrounded"] = self.unrounded[group]
            if group in self.pairs:
                series |= self._to_ends(group)
            found += [
                Record(step, name, float(value), {"group": group})
                for name, values in series.items()
                for step, value in zip(self.steps, values, strict=False)
                if np.isfinite(value)
            ]
        return found

    def _to_ends(self, group: str) -> dict[str, Float]:
        """How far, and at what angle, each checkpoint lies from the first and from the last."""
        pairs = self.pairs[group]
        return {
            f"{what}_to_{end}": values[:, index]
            for end, index in (("first", 0), ("last", -1))
            for what, values in (
                ("distance", pairs.distance),
                ("cosine", 1 - pairs.one_minus_cosine),
            )
        }

    def frame(self) -> pl.DataFrame:
        """The records as a table: step, name, value, group."""
        rows = [(r.step, r.name, r.value, r.labels["group"]) for r in self.records()]
        kinds = {"step": pl.Int64, "name": pl.String, "value": pl.Float64, "group": pl.String}
        return pl.DataFrame(rows, schema=kinds, orient="row")

    def pair_frame(self) -> pl.DataFrame:
        """Every pair of checkpoints, the earlier first: how far apart, at what angle, how aligned.

        ``alignment`` is cos(θ_later − θ_step, θ_step): that of a step over any number of
        checkpoints. Empty if only neighbours were read.
        """
        kinds = {
            "group": pl.String,
            "step": pl.Int64,
            "later": pl.Int64,
            "distance": pl.Float64,
            "one_minus_cosine": pl.Float64,
            "alignment": pl.Float64,
        }
        steps = np.array(self.steps, dtype=np.int64)
        earlier, later = np.triu_indices(len(steps), 1)
        frames = [
            pl.DataFrame(
                {
                    "group": [name] * len(earlier),
                    "step": steps[earlier],
                    "later": steps[later],
                    "distance": each.distance[earlier, later],
                    "one_minus_cosine": each.one_minus_cosine[earlier, later],
                    "alignment": each.alignment[earlier, later],
                },
                schema=kinds,
            )
            for name, each in self.pairs.items()
        ]
        return pl.concat(frames) if frames else pl.DataFrame(schema=kinds)

    def path(self, group: str = "total") -> pl.DataFrame:
        """The path on its first two principal components: step, first, second."""
        _, coordinates = self.pairs[group].components
        second = coordinates[:, 1] if coordinates.shape[1] > 1 else np.zeros(len(self.steps))
        return pl.DataFrame({"step": self.steps, "first": coordinates[:, 0], "second": second})


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
    allowed = memory_bytes(memory)
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


def memory_bytes(text: int | str) -> int:
    """'512MiB' in bytes; K, M, G and T are powers of 1024."""
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        size = int(min(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "), 2**62))
    if size < _LEAST_MEMORY:
        raise ConfigError(
            f"memory '{text}'", expected="a size from 16MiB on", do="for example 512MiB"
        )
    return size


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


def _numbers(values: Float) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in values]


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
