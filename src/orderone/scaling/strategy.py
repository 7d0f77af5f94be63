"""Strategies: how fast the head's initialisation shrinks, and who learns how fast.

| name | s | |
|---|---|---|
| neural-tangent | 0 | [DYZ23] (1.25)–(1.33) |
| hybrid | ½ | between the two |
| maximal-update | 1 | μP |
| standard | – | uniform factors, the usual practice |
"""

from __future__ import annotations

from dataclasses import dataclass

from orderone.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A point of the meta-family, or the uniform practice that it is compared with."""

    name: str
    s: float = 0.0
    uniform: bool = False
    """Every factor is 1 and a model keeps its own initialisation."""


NAMED = {
    "neural-tangent": 0.0,
    "hybrid": 0.5,
    "maximal-update": 1.0,
}


def strategy(name: str | None = None, *, s: float | None = None) -> Strategy:
    """The strategy of that name, or of that s in [0, 1]; neural-tangent when neither is given."""
    if s is not None:
        return _of_exponent(name, s)
    name = "neural-tangent" if name is None else name
    if name == "standard":
        return Strategy(name=name, uniform=True)
    if name not in NAMED:
        raise ConfigError(
            f"strategy '{name}'",
            expected=f"one of {', '.join([*NAMED, 'standard'])}",
            do="choose one, or give s between 0 and 1",
        )
    return Strategy(name=name, s=NAMED[name])


def _of_exponent(name: str | None, s: float) -> Strategy:
    if not 0 <= s <= 1:
        raise ConfigError(
            f"s = {s}",
            expected="a number in [0, 1]: 0 is neural-tangent, 1 maximal-update",
            do="choose s in that range",
        )
    if name is not None and NAMED.get(name) != s:
        raise ConfigError(
            f"strategy '{name}' together with s = {s}", expected="one of the two", do="drop one"
        )
    known = {value: key for key, value in NAMED.items()}
    return Strategy(name=known.get(s, f"s={s:g}"), s=float(s))
