"""C_G: the order-one constants of the initial variances, and the presets of [DYZ23]."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from orderone.core.errors import ConfigError

Distribution = Literal["normal", "uniform", "truncated"]
"""Only the variance matters at leading order; truncated is a normal cut at two deviations."""

DISTRIBUTIONS: tuple[Distribution, ...] = ("normal", "uniform", "truncated")

GROUPS = frozenset(
    [
        *("patch", "word", "position", "Q", "K", "V", "U", "W", "X", "head"),
        *("qkv", "kv", "gate", "dense", "gain", "bias", "relative-bias", "class-token"),
        "convolution",
    ]
)
"""Groups that a model may have; an override may add others."""

# What the paper leaves out starts like its nearest relative.
_LIKE = {"qkv": "Q", "kv": "K", "gate": "W", "class-token": "position"}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """C_G by group; every other group has C = 1, or the absolute deviation ``std``."""

    name: str
    C: Mapping[str, float] = field(default_factory=dict[str, float])
    std: float | None = None
    """Deviation at any width of each group that ``C`` does not name."""
    uniform: Collection[str] = ()
    """Groups drawn uniformly; others are normal."""

    def variance(self, group: str, at_one: float) -> float:
        """Initial variance, of a tensor whose rule gives ``at_one`` at C = 1."""
        C = self._C(group)
        if C is None:
            return at_one if self.std is None else self.std**2
        return C * at_one

    def distribution(self, group: str) -> Distribution:
        """What the group's weights are drawn from."""
        return "uniform" if {group, _LIKE.get(group)} & set(self.uniform) else "normal"

    def _C(self, group: str) -> float | None:
        return self.C.get(group, self.C.get(_LIKE.get(group, group)))


ONES = Constants(name="ones")

# [DYZ23] §II.1: patch = head = 1.
VISION = Constants(
    name="vision",
    C={
        "Q": 1 / 2,
        "K": 1 / 2,
        "V": 1 / 2,
        "U": 1 / 3,
        "W": 2 / 5,
        "X": 8 / 5,
        "position": 0.02**2,
    },
    uniform="QKVUWX",
)

# [DYZ23] §II.2: the standard runs, and the neural-tangent ones, which differ in C_WE alone.
LANGUAGE = Constants(name="language", std=0.02)
LANGUAGE_WORD = Constants(name="language-word", std=0.02, C={"word": 1.0})

PRESETS = {preset.name: preset for preset in (ONES, VISION, LANGUAGE, LANGUAGE_WORD)}


def constants_of(
    given: str | Mapping[str, float] | Constants, groups: Collection[str]
) -> Constants:
    """The preset of that name, or the given C_G with ones elsewhere.

    ``groups`` are those that the model has beside the known ones.
    """
    if isinstance(given, Constants):
        return given
    if isinstance(given, str):
        return _preset(given)
    allowed = GROUPS | set(groups)
    for group, C in given.items():
        if group not in allowed:
            raise ConfigError(
                f"a constant for group '{group}'",
                expected=f"one of {', '.join(sorted(allowed))}",
                do="rename it; print(plan) lists the model's groups",
            )
        if not (math.isfinite(C) and C >= 0):
            raise ConfigError(
                f"constant C_{group} = {C}", expected="a finite number ≥ 0", do="correct it"
            )
    return Constants(name="given", C=dict(given))


def _preset(name: str) -> Constants:
    if name not in PRESETS:
        raise ConfigError(
            f"constants '{name}'",
            expected=f"one of {', '.join(PRESETS)}, or numbers by group",
            do="choose one",
        )
    return PRESETS[name]
