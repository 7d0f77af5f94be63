"""What a series of checkpoints tells: sentences, records, tables, and one object for JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from orderone.core.record import Record
from orderone.trajectory.dynamics import Dynamics
from orderone.trajectory.findings import Finding
from orderone.trajectory.geometry import Neighbours, Pairs
from orderone.trajectory.growth import Growth

Float = npt.NDArray[np.float64]


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


def _numbers(values: Float) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in values]


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
