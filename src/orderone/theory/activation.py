"""σ of the MLP as the theory needs it: a name with a closed form, or any function with its σ'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from orderone.core.errors import ConfigError

Activation = Callable[[Tensor], Tensor]

CLOSED = ("gelu", "relu", "erf", "linear")
"""Activations whose Gaussian averages are closed forms."""

QUADRATURE: dict[str, Activation] = {
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu-tanh": cast(Activation, partial(functional.gelu, approximate="tanh")),
}
"""Named activations whose averages are integrated."""


def activation(name: str) -> Activation:
    """The function of a name outside ``CLOSED``: one of ours, or ``package.module:function``."""
    if name in QUADRATURE:
        return QUADRATURE[name]
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
    value = sigma(w)
    if value.shape != w.shape or value.dtype != w.dtype:
        raise ConfigError(
            f"an activation that turns {tuple(w.shape)} {w.dtype} into "
            f"{tuple(value.shape)} {value.dtype}",
            expected="an element-wise function that keeps shape and type",
            do="correct it, or choose another",
        )
    return value


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"activation '{name}'",
        expected=f"one of {', '.join([*CLOSED, *QUADRATURE])}, or package.module:function",
        do="choose one",
    )
