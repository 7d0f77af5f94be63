"""σ of the MLP, by name or by the import path of any element-wise function of a tensor."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError

Activation = Callable[[Tensor], Tensor]

_gelu_tanh: Activation = partial(functional.gelu, approximate="tanh")


def linear(w: Tensor) -> Tensor:
    """σ(w) = w."""
    return w


ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu-tanh": _gelu_tanh,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "erf": torch.erf,
    "linear": linear,
}


def activation(name: str) -> Activation:
    """The function that ``name`` stands for: one of ours, or ``package.module:function``."""
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise _unknown(name)
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unknown(name) from error
    if not callable(found):
        raise _unknown(name)
    return cast(Activation, found)


def activation_name(given: Any) -> Any:
    """A callable as its import path, so that a configuration stays text; anything else as it is."""
    if not callable(given):
        return given
    for name, known in ACTIVATIONS.items():
        if known is given:
            return name
    path = f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', '')}"
    try:
        same = activation(path) is given
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(
            f"activation {given!r}",
            expected="a function that can be imported by its name",
            do="define it at the top level of a module",
        )
    return path


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"activation '{name}'",
        expected=f"one of {', '.join(ACTIVATIONS)}, or package.module:function",
        do="choose one",
    )
