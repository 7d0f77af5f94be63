"""σ of the MLP, by name or by the import path of any element-wise function of a tensor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError
from orderone.core.functions import importable_name, named_function

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
    """The function that ``name`` stands for."""
    return named_function("activation", name, ACTIVATIONS)


def require_elementwise(name: str) -> None:
    """ConfigError for a function that does not make of a tensor another of its shape."""
    if name in ACTIVATIONS:
        return
    found: Any
    try:
        found = activation(name)(torch.ones(2, 3, device="cpu"))
    except Exception as error:  # whatever it was written to raise
        found = error
    if not isinstance(found, Tensor) or found.shape != (2, 3):
        raise ConfigError(
            f"activation '{name}', which makes {_said(found)} of a tensor of shape (2, 3)",
            expected=f"one of {', '.join(ACTIVATIONS)}, or an element-wise function of a tensor",
            do="choose another",
        )


def _said(found: Any) -> str:
    if isinstance(found, Exception):
        return f"an error ({str(found).splitlines()[0] if str(found) else type(found).__name__})"
    return f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__


def activation_name(given: Any) -> Any:
    """A callable as its import path, so that a configuration stays text; anything else as it is."""
    return importable_name("activation", given, ACTIVATIONS)
