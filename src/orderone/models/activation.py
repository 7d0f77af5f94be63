"""σ of the MLP, by name or by the import path of any element-wise function of a tensor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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


def activation_name(given: Any) -> Any:
    """A callable as its import path, so that a configuration stays text; anything else as it is."""
    return importable_name("activation", given, ACTIVATIONS)
