"""σ of the MLP as the theory needs it: a name with a closed form, or any function with its σ'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError, OrderoneError
from orderone.core.functions import named_function

Activation = Callable[[Tensor], Tensor]


def linear(w: Tensor) -> Tensor:
    """σ(w) = w."""
    return w


CLOSED = ("gelu", "relu", "erf", "linear")
"""Activations whose Gaussian averages are closed forms."""

NAMED: dict[str, Activation] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "erf": torch.erf,
    "linear": linear,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu-tanh": cast(Activation, partial(functional.gelu, approximate="tanh")),
}
"""Averages of those that are not closed are integrated."""


def activation(name: str) -> Activation:
    """The function of a name: one of ours, or ``package.module:function`` of a module in use."""
    return named_function("activation", name, NAMED)


def value_and_slope(sigma: Activation, w: Tensor) -> tuple[Tensor, Tensor]:
    """σ(w) and σ'(w), the slope as automatic differentiation gives it, also at a kink."""
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        value = applied(sigma, w)
        if not value.requires_grad:
            return value, torch.zeros_like(value)
        (slope,) = torch.autograd.grad(value.sum(), w)
    return value.detach(), slope


def applied(sigma: Activation, w: Tensor) -> Tensor:
    """σ(w); what is not element-wise is refused."""
    try:
        value = cast(object, sigma(w))
    except OrderoneError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise ConfigError(
            f"an activation that fails ({type(error).__name__}: {error})",
            expected="an element-wise function of one tensor",
            do="correct it, or choose another",
        ) from error
    if isinstance(value, Tensor) and value.shape == w.shape and value.dtype == w.dtype:
        return value
    made = (
        f"{tuple(value.shape)} {value.dtype}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
    raise ConfigError(
        f"an activation that turns {tuple(w.shape)} {w.dtype} into {made}",
        expected="an element-wise function that keeps shape and type",
        do="correct it, or choose another",
    )
