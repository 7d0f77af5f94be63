"""Optimizers by their name in torch.optim, on groups that already know rate and decay."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import torch
from torch.optim import Optimizer

from orderone.core.errors import ConfigError
from orderone.training.config import OptimizerConfig

_NEEDS_MORE = {
    "LBFGS": "calls the loss several times a step",
    "SparseAdam": "takes sparse gradients alone",
}
_LINEAR = {"SGD", "ASGD"}
_OF_OTHER_LOOPS = {"capturable", "differentiable"}
"""Settings for CUDA graphs, and for gradients through steps."""


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
    _require_settings(cls, config.settings)
    settings = {key: _tuples(value) for key, value in config.settings.items()}
    settings |= {"lr": config.lr, "weight_decay": config.weight_decay}
    taken = {key: value for key, value in settings.items() if key in _parameters(cls)}
    try:
        return cls([dict(group) for group in groups], **taken)
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise ConfigError(
            f"{cls.__name__} refuses its settings ({error})",
            expected="settings and parameters that it takes",
            do="correct [optimizer], or choose another",
        ) from error


def _require_settings(cls: type[Optimizer], settings: Mapping[str, Any]) -> None:
    """ConfigError for a setting that the class has not, or that is of another kind than its own.

    Torch itself looks at few of them, and at some only when the first step is taken.
    """
    known = _parameters(cls) - {"params", "lr", "weight_decay"} - _OF_OTHER_LOOPS
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(
                f"optimizer.settings.{key} for {cls.__name__}",
                expected=f"one of {', '.join(sorted(known))}",
                do="remove or rename it",
            )
        kind = _kind(key, inspect.signature(cls).parameters[key].default)
        if kind is not None and not _is(kind, value):
            raise ConfigError(
                f"optimizer.settings.{key} = {value!r} for {cls.__name__}",
                expected=kind,
                do="correct it",
            )


def _kind(key: str, default: Any) -> str | None:
    """What a setting with that default must be; None where the default does not tell."""
    if isinstance(default, bool) or key in ("foreach", "fused"):
        return "true or false"
    if isinstance(default, int | float):
        return "a number"
    if isinstance(default, tuple):
        return f"{len(cast('tuple[Any, ...]', default))} numbers"
    return None


def _is(kind: str, value: Any) -> bool:
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    numbers: list[Any] = value if isinstance(value, list) else []
    return kind == f"{len(numbers)} numbers" and all(_is("a number", each) for each in numbers)


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
