"""A model's and an optimizer's tensors by name, and the way back into both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from orderone.core.errors import RunError
from orderone.core.parameter_names import clean_name

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Read = Callable[[Tensors], Tensors]
"""Fills tensors like those given, from a checkpoint."""

_BETWEEN = "|"  # parameter | key of the optimizer's state


def model_tensors(model: nn.Module) -> Tensors:
    """Parameters and persistent buffers by cleaned name; tied ones once."""
    kept = set(model.state_dict())
    named = cast(
        "Iterator[tuple[str, Tensor]]", chain(model.named_parameters(), model.named_buffers())
    )
    return {clean_name(name): each.detach() for name, each in named if name in kept}


@torch.no_grad()
def put_model(model: nn.Module, read: Read, path: Path) -> None:
    """A checkpoint's tensors into the model, in place; refused where it is another model."""
    mine = model_tensors(model)
    for name, found in read(mine).items():
        if found.shape != mine[name].shape:
            raise another_model(path, name, found.shape, mine[name].shape)
        if found is not mine[name]:
            mine[name].copy_(found)


def another_model(
    path: Path, name: str, found: tuple[int, ...] | None, expected: tuple[int, ...] | None
) -> RunError:
    """What differs between the checkpoint's model and the one that it was to be put into."""
    there = "no" if found is None else f"shape {tuple(found)} of"
    here = "none" if expected is None else f"shape {tuple(expected)}"
    return RunError(
        f"'{path}' is of another model: {there} '{name}'",
        expected=f"{here}, as in the model here",
        do="resume with the model that the run was started with",
    )


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """Tensors of the optimizer's state by ``parameter|key``, and the numbers beside them."""
    tensors: Tensors = {}
    values: dict[str, Any] = {}
    for name, parameter in _trained(model, optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}{_BETWEEN}{key}"] = value.detach()
            elif value is None or isinstance(value, bool | int | float):
                values[f"{name}{_BETWEEN}{key}"] = value
            else:
                raise RunError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as '{key}'",
                    expected="tensors and numbers, which a checkpoint can hold",
                    do="choose another optimizer",
                )
    return tensors, values


def put_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    shapes: Shapes,
    read: Read,
    values: Mapping[str, Any],
) -> None:
    """The state that ``optimizer_state`` returned, into an optimizer of the same kind."""
    parameters = _trained(model, optimizer)
    like = {name: _like(parameters, name, shape) for name, shape in shapes.items()}
    optimizer.state.clear()
    for name, tensor in read(like).items():
        parameter, _, key = name.rpartition(_BETWEEN)
        owner = _owner(parameters, parameter)
        optimizer.state[owner][key] = tensor.to(_home(optimizer, owner, key))
    for name, value in values.items():
        parameter, _, key = name.rpartition(_BETWEEN)
        optimizer.state[_owner(parameters, parameter)][key] = value


def _like(parameters: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor for that state: laid out as its parameter where it has its shape."""
    owner = _owner(parameters, name.rpartition(_BETWEEN)[0])
    if tuple(owner.shape) == shape:
        return torch.zeros_like(owner)
    return torch.zeros(shape)


def _home(optimizer: Optimizer, parameter: Tensor, key: str) -> torch.device:
    """torch keeps the count of steps on the CPU unless a kernel on the device reads it."""
    group = next(
        group
        for group in optimizer.param_groups
        if any(each is parameter for each in group["params"])
    )
    on_device = bool(group.get("capturable")) or bool(group.get("fused"))
    return torch.device("cpu") if key == "step" and not on_device else parameter.device


def _owner(parameters: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in parameters:
        raise RunError(
            f"an optimizer's state for '{name}', which is not trained here",
            expected=f"one of {', '.join(list(parameters)[:5])}, …",
            do="resume with the model that the run was started with",
        )
    return parameters[name]


def _trained(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """The optimizer's parameters by cleaned name."""
    names = {each: clean_name(name) for name, each in model.named_parameters()}
    groups = optimizer.param_groups
    return {names[each]: each for group in groups for each in group["params"]}


def is_sharded(tensors: Mapping[str, Tensor]) -> bool:
    """Whether ranks hold different parts of them."""
    return any(isinstance(each, DTensor) for each in tensors.values())
