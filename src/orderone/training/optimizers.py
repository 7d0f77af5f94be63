"""Optimizers by their name in torch.optim, on groups that already know rate and decay."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from orderone.core.errors import ConfigError
from orderone.training.config import OptimizerConfig

_NEEDS_MORE = {
    "LBFGS": "calls the loss several times a step",
    "SparseAdam": "takes sparse gradients alone",
}
_LINEAR = {"SGD", "ASGD"}


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of that name in torch.optim, whatever its case."""
    found = {known.lower(): known for known in _names()}.get(name.lower())
    if found is None:
        why = {each.lower(): f", which {why}" for each, why in _NEEDS_MORE.items()}
        raise ConfigError(
            f"optimizer.name = '{name}'{why.get(name.lower(), '')}",
            expected=f"one of {', '.join(_names())}",
            do="choose one",
        )
    return getattr(torch.optim, found)


def scaling_kind(name: str) -> Literal["adamw", "sgd"]:
    """Whether steps follow the gradient's size ("sgd") or are free of it ("adamw")."""
    return "sgd" if optimizer_class(name).__name__ in _LINEAR else "adamw"


def optimizer(groups: Iterable[Mapping[str, Any]], config: OptimizerConfig) -> Optimizer:
    """The optimizer on ``groups``; rates and decays that these lack are the configuration's."""
    cls = optimizer_class(config.name)
    known = set(inspect.signature(cls).parameters) - {"self", "params", "lr", "weight_decay"}
    unknown = [key for key in config.settings if key not in known]
    if unknown:
        raise ConfigError(
            f"optimizer.settings.{unknown[0]} for {cls.__name__}",
            expected=f"one of {', '.join(sorted(known))}",
            do="remove or rename it",
        )
    settings = {key: _tuples(value) for key, value in config.settings.items()}
    settings |= {"lr": config.lr, "weight_decay": config.weight_decay}
    taken = {key: value for key, value in settings.items() if key in _parameters(cls)}
    try:
        return cls([dict(group) for group in groups], **taken)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{cls.__name__} refuses its settings ({error})",
            expected="settings and parameters that it takes",
            do="correct [optimizer], or choose another",
        ) from error


def _parameters(cls: type[Optimizer]) -> set[str]:
    return set(inspect.signature(cls).parameters)


def _tuples(value: Any) -> Any:
    """TOML has lists where torch wants tuples: betas."""
    return tuple(value) if isinstance(value, list) else value


def _names() -> list[str]:
    """Classes of torch.optim that a plain loop can drive."""
    members = inspect.getmembers(torch.optim, inspect.isclass)
    return [
        name
        for name, each in members
        if issubclass(each, Optimizer) and each is not Optimizer and name not in _NEEDS_MORE
    ]
