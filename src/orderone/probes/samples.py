"""Inputs of a model taken apart by sample, and the output that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.errors import DataError, ModelError, OrderoneError
from orderone.core.outputs import main_tensor

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""A tensor, positional arguments, or arguments by name; the first axis of tensors is samples."""
Output = Callable[[Any], Tensor]


def sample_count(inputs: Inputs) -> int:
    """Samples in the inputs, the same for each tensor."""
    tensors = tensors_of(inputs)
    counts = {len(x) if x.ndim else 0 for x in tensors}
    if len(counts) != 1 or not min(counts):
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors) or "none"
        raise DataError(
            f"inputs of shapes {shapes}",
            expected="tensors with one number of samples, at least 1, as first axis",
            do="stack the samples along the first axis of every tensor",
        )
    return counts.pop()


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors among the inputs, in order."""
    positional, named = _arguments(inputs)
    return [x for x in [*positional, *named.values()] if isinstance(x, Tensor)]


def with_tensors(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """The same inputs with others in place of their tensors."""
    left = iter(tensors)

    def replaced(x: Any) -> Any:
        return next(left) if isinstance(x, Tensor) else x

    positional, named = _arguments(inputs)
    places = [replaced(x) for x in positional]
    return {key: replaced(x) for key, x in named.items()} if named else places


def call(model: nn.Module, inputs: Inputs) -> Any:
    """The model's own output."""
    positional, named = _arguments(inputs)
    try:
        return model(*positional, **named)
    except (OrderoneError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in tensors_of(inputs))
        raise ModelError(
            f"a {type(model).__name__} that fails on inputs of {shapes} "
            f"({type(error).__name__}: {error})",
            expected="inputs as the model takes them: shapes, types, tokens of its vocabulary",
            do="correct the inputs",
        ) from error


def chosen_output(raw: Any, output: Output | None) -> Tensor:
    """The tensor to measure in what a model returned."""
    found: Any = main_tensor(raw) if output is None else output(raw)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise ModelError(
            f"an output of type {type(found if output else raw).__name__}",
            expected="a floating tensor, or something with one in it",
            do="choose the tensor with output=...",
        )
    return found


def _arguments(inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return [inputs], {}
    if isinstance(inputs, Mapping):
        return [], {str(k): v for k, v in inputs.items()}
    return list(inputs), {}
