"""Functions by name: one of a table, or ``package.module:function`` of a module in use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from orderone.core.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def named_function(what: str, name: str, known: Mapping[str, Function]) -> Function:
    """The function that ``name`` stands for.

    Only of a module that is already imported: a name may come from a file, and a file must not
    make us import, and so execute, what it names.
    """
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    found: Any = sys.modules.get(module) if colon else None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(
            f"{what} '{name}'",
            expected=f"one of {', '.join(known)}, or package.module:function of an imported module",
            do="choose one, or import the module first",
        )
    return cast(Function, found)


def importable_name(what: str, given: Any, known: Mapping[str, Callable[..., Any]]) -> Any:
    """A callable as the name that finds it again; anything else as it is."""
    if not callable(given):
        return given
    for name, function in known.items():
        if function is given:
            return name
    path = f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', '')}"
    try:
        same = named_function(what, path, known) is given
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(
            f"{what} {given!r}",
            expected="a function that can be imported by its name",
            do="define it at the top level of a module",
        )
    return path
