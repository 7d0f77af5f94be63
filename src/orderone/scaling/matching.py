"""From the names of a plan to the parameters and modules of a model, wrapped or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import nn

from orderone.core.errors import ModelError
from orderone.core.parameter_names import clean_name
from orderone.scaling.row import Row

_SHOWN = 3


def required_module(found: object, what: str) -> nn.Module:
    """``found``, refused unless it is a model."""
    if isinstance(found, nn.Module):
        return found
    raise ModelError(
        f"{what} is a {type(found).__name__}",
        expected="a torch.nn.Module",
        do="pass the model itself; let make(width) return it",
    )


def bare(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DDP's wrappers."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def parameters_of(model: nn.Module, rows: Iterable[Row]) -> dict[str, nn.Parameter]:
    """The model's parameter of every row; one error says all that differs."""
    rows = tuple(rows)
    found = {clean_name(n): p for n, p in model.named_parameters(remove_duplicate=False)}
    differences = list(_differences(found, rows))
    if differences:
        raise ModelError(
            f"{type(model).__name__} differs from the model of the plan: {'; '.join(differences)}",
            expected="the same parameters",
            do="make a plan for this model: orderone.plan(model)",
        )
    _require_ties(found, rows)
    return {row.name: found[row.name] for row in rows}


def module_of(model: nn.Module, name: str) -> nn.Module:
    """The module of that name; inside a wrapper that keeps the name, what is wrapped."""
    named = [module for path, module in model.named_modules() if clean_name(path) == name]
    if not named:
        raise ModelError(
            f"no module '{name}' in {type(model).__name__}",
            expected="the head that the plan was made for",
            do="make a plan for this model: orderone.plan(model)",
        )
    return named[-1]


def _differences(found: dict[str, nn.Parameter], rows: tuple[Row, ...]) -> Iterable[str]:
    names = [name for row in rows for name in (row.name, *row.also)]
    missing = [name for name in names if name not in found]
    # A name that the plan does not list may still be one more name of a tensor that it lists.
    placed = {id(found[name]) for name in names if name in found}
    extra = [name for name, p in found.items() if name not in names and id(p) not in placed]
    if missing:
        yield f"missing {_some(missing)}"
    if extra:
        yield f"extra {_some(extra)}"
    shapes = [
        f"{row.name} {_times(found[row.name].shape)} instead of {_times(row.shape)}"
        for row in rows
        if row.name in found and tuple(found[row.name].shape) != row.shape
    ]
    if shapes:
        yield f"shape of {_some(shapes)}"


def _require_ties(found: dict[str, nn.Parameter], rows: tuple[Row, ...]) -> None:
    """``to_empty`` and ``load_state_dict(assign=True)`` silently untie what was one tensor."""
    for row in rows:
        for other in row.also:
            if found[other] is not found[row.name]:
                raise ModelError(
                    f"{other} is no longer the same tensor as {row.name}",
                    expected="them tied, as when the plan was made",
                    do="tie them again, in transformers by model.tie_weights()",
                )


def _some(items: Collection[str]) -> str:
    shown = ", ".join(list(items)[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


def _times(shape: Iterable[int]) -> str:
    return "×".join(map(str, torch.Size(shape))) or "()"
