"""Names that a browser's language keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

INHERITED = (
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
    "__proto__",
)
"""Fields of every object of JavaScript, in which Vega looks its own names up."""

_UNSEEN = "\u200b"


def told_apart(value: Any) -> Any:
    """``value`` with a letter of no width after every text that is such a name."""
    if isinstance(value, str):
        return value + _UNSEEN if value in INHERITED else value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: told_apart(each) for key, each in items}
    if isinstance(value, list):
        return [told_apart(each) for each in cast("list[Any]", value)]
    return value
