"""Small networks with all biases on, and f(x; cθ) beside the limit, in float64 throughout."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from orderone.asymptotics import Graded, Trace, graded_parameters

Call = Callable[[nn.Module], list[Tensor]]


class KeepDouble(TorchFunctionMode):
    """Models that turn to float32 inside (RMSNorm, softmax) stay in float64: no overflow at c⁵."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def randomized(model: nn.Module, *, std: float = 0.3, seed: int = 0) -> nn.Module:
    """Every parameter normal, gains and biases too, so that none is 0 by initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.double().eval()


@contextmanager
def multiplied(model: nn.Module, c: float) -> Iterator[None]:
    """The model with parameters cθ."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(c)
        yield
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)


def limits(model: nn.Module, call: Call) -> tuple[list[Graded], Trace]:
    with KeepDouble(), graded_parameters(model) as trace:
        found = call(model)
    assert all(isinstance(each, Graded) for each in found)
    return found, trace


def error_at(model: nn.Module, call: Call, found: list[Graded], c: float) -> float:
    """The largest relative distance of c^−k f(x; cθ) from its limit, over the outputs."""
    with KeepDouble(), multiplied(model, c):
        values = [each.detach().clone() for each in call(model)]  # some may be parameters
    return max(
        float((value / c ** float(limit.degree) - limit.lead).norm() / limit.lead.norm())
        for value, limit in zip(values, found, strict=True)
    )


def slope(errors: dict[float, float]) -> float:
    """Of log error on log c, by least squares."""
    x = torch.tensor([math.log(c) for c in errors])
    y = torch.tensor([math.log(error) for error in errors.values()])
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def outputs(*names: str) -> Callable[[Any], list[Tensor]]:
    """The named tensors of a transformers output, tuples spread."""

    def read(output: Any) -> list[Tensor]:
        found = [getattr(output, name) for name in names]
        return [t for each in found for t in (each if isinstance(each, tuple) else (each,))]

    return read
