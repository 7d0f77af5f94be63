"""Sizes of everything inside a model: is each of order one, and how far has it moved?

The coordinate check of wide networks: r.m.s. of each block's z, of each weight's preactivations, of
the attention logits Ω̃, of the output, and of the gradient by group of parameters; measured on any
``nn.Module`` by hooks, and on its attention by watching torch's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orderone.core.errors import ModelError
from orderone.core.outputs import main_tensor
from orderone.core.parameter_names import block_path, clean_name
from orderone.probes.logits import LogitsMode

Kind = Literal["block", "map", "logits", "output", "gradient"]


class Place(NamedTuple):
    """What is measured, and where: a module's name, or a group of parameters."""

    kind: Kind
    where: str


Signals = dict[Place, Float[Tensor, "*_"]]


def signals(model: nn.Module, run: Callable[[], object]) -> Signals:
    """Every signal of one forward pass, ``run()``, detached.

    block   output of each block of a list of blocks: z
    map     output of each module that owns a matrix: embeddings, Q s, K s, V s, U v, W s, X σ
    logits  Ω̃ before the softmax, legal entries alone, of whatever attention torch sees
    output  what the model itself returns, its logits where they are named
    """
    seen: Signals = {}
    with _watched(model, seen):
        run()
    if Place("output", "output") not in seen:
        raise ModelError(
            f"a {type(model).__name__} without a tensor in its output",
            expected="a tensor, or a tuple or mapping with one",
            do="wrap the model so that it returns one",
        )
    return seen


def sizes(of: Signals) -> dict[Place, float]:
    """R.m.s. of each signal."""
    return {place: rms(signal) for place, signal in of.items()}


def changes(after: Signals, before: Signals) -> dict[Place, float]:
    """R.m.s. of the difference, of every signal that both passes have."""
    return {
        place: rms(after[place] - before[place])
        for place in before
        if place in after and after[place].shape == before[place].shape
    }


def gradients(model: nn.Module) -> dict[str, Float[Tensor, "*_"]]:
    """Gradient of every parameter that has one, by name, kept apart from the next backward pass."""
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def gradient_sizes(gradient: Mapping[str, Tensor], groups: Mapping[str, str]) -> dict[Place, float]:
    """|g|: r.m.s. of one component of the gradient, over all tensors of a group.

    ``groups`` is group by parameter name; names without a group are left out.
    """
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, grad in gradient.items():
        group = groups.get(clean_name(name))
        if group is not None:
            squares[group] = squares.get(group, 0.0) + grad.double().square().sum().item()
            counts[group] = counts.get(group, 0) + grad.numel()
    return {Place("gradient", g): math.sqrt(squares[g] / counts[g]) for g in squares}


def rms(x: Float[Tensor, "*_"]) -> float:
    """√ of the mean square, accumulated in float64; 0 of nothing."""
    return x.double().square().mean().sqrt().item() if x.numel() else 0.0


@contextmanager
def _watched(model: nn.Module, seen: Signals) -> Generator[None]:
    """Hooks on every module that is measured; all are gone afterwards."""
    blocks = _blocks(model)
    running = [""]

    def keep(place: Place, value: Tensor) -> None:
        # A module that runs twice (a shared embedding) is two signals.
        times = 1
        while place in seen:
            times += 1
            place = Place(place.kind, f"{place.where.removesuffix(f' ({times - 1})')} ({times})")
        seen[place] = value.detach()

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leave(kind: Kind | None, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            running.pop()
            value = main_tensor(output) if kind else None
            if kind and value is not None:
                keep(Place(kind, name), value)

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            kind = _kind(name, module, blocks)
            label = clean_name(name) if name else "output"
            before = module.register_forward_pre_hook(enter(label))
            # Called even when the forward fails: ``running`` must not be left one too deep.
            after = module.register_forward_hook(leave(kind, label), always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        stack.enter_context(LogitsMode(lambda x: keep(Place("logits", running[-1]), x)))
        yield


def _kind(name: str, module: nn.Module, blocks: set[str]) -> Kind | None:
    if not name:
        return "output"
    if name in blocks:
        return "block"
    owns = any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False))
    return "map" if owns else None


def _blocks(model: nn.Module) -> set[str]:
    """Names of the members of lists of blocks; a bare layer of a list is a map, not a block."""
    modules = dict(model.named_modules())
    paths = {block_path(name) for name, _ in model.named_parameters()} - {None}
    names = {".".join(path) for path in paths if path is not None}
    return {name for name in names if name in modules and any(modules[name].children())}


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Dropout off: two passes then differ by the weights alone."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def forward_signals(model: nn.Module, run: Callable[[], object]) -> Signals:
    """``signals`` without dropout and without a graph."""
    with evaluating(model), torch.no_grad():
        return signals(model, run)
