"""Kernels of a model as it is: how alike its signals are, block by block.

[DYZ23] eq. (1.36), (1.53): G_12 = (1/n) Σ_i z_1i z_2i over pairs of samples and tokens; F_12 is the
same of the layer-normalised signal, which includes what the norm subtracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.core.outputs import main_tensor
from orderone.core.parameter_names import block_path
from orderone.probes.coordinates import evaluating
from orderone.probes.samples import Inputs, Output, call, chosen_output, sample_count


@dataclass(frozen=True, kw_only=True)
class MeasuredKernel:
    """G and F of one place; rows are (sample, position), sample-major."""

    name: str
    G: Float64[Tensor, "a a"] = field(repr=False)
    F: Float64[Tensor, "a a"] = field(repr=False)
    shape: tuple[int, ...]
    """(samples, positions…)."""


def kernel(
    model: nn.Module,
    inputs: Inputs,
    *,
    modules: Sequence[str] | None = None,
    epsilon: float | None = None,
    output: Output | None = None,
) -> list[MeasuredKernel]:
    """G and F of z^(1), of z after every block, and of the output.

    z is what enters the first block of a list and what leaves each: the same as ``trace(...)`` of
    our models and the hidden states of transformers', but always before a last norm. ``modules``
    names others to measure instead, by their outputs. ``epsilon`` is the norms' ε; without, that
    of the model's first norm.
    """
    eps = _epsilon(model) if epsilon is None else _possible(epsilon)
    count = sample_count(inputs)
    with evaluating(model), torch.no_grad():
        signals, raw = _signals(model, lambda: call(model, inputs), modules)
    _refuse_silent(modules or (), signals)
    places = {**signals, "output": chosen_output(raw, output)}
    return [_measured(name, z, count, eps) for name, z in places.items()]


def signal_kernel(z: Float[Tensor, "a n"]) -> Float64[Tensor, "a a"]:
    """(1/n) Σ_i z_1i z_2i, in float64."""
    z = (z.cpu() if z.device.type == "mps" else z).double()
    return z @ z.mT / z.shape[1]


def normalised(z: Float[Tensor, "a n"], epsilon: float) -> Float64[Tensor, "a n"]:
    """LN(z) without gain and bias, [DYZ23] eq. (1.10)–(1.11)."""
    z = (z.cpu() if z.device.type == "mps" else z).double()
    centred = z - z.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()


def _measured(name: str, z: Tensor, samples: int, epsilon: float) -> MeasuredKernel:
    if z.ndim < 2 or z.shape[0] != samples:
        raise DataError(
            f"a signal of shape {tuple(z.shape)} at '{name}' for {samples} samples",
            expected="(samples, ..., features)",
            do="name modules whose outputs have samples first and features last",
        )
    rows = z.flatten(0, -2)
    F = signal_kernel(normalised(rows, epsilon))
    return MeasuredKernel(name=name, G=signal_kernel(rows), F=F, shape=tuple(z.shape[:-1]))


def _signals(
    model: nn.Module, run: Callable[[], Any], modules: Sequence[str] | None
) -> tuple[dict[str, Tensor], Any]:
    """z by place, in the order in which it arises, and what the model returned."""
    named = dict(model.named_modules())
    blocks = _lists_of_blocks(model) if modules is None else {"": _known(named, modules)}
    seen: dict[str, Tensor] = {}

    def enters(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, settings: Any) -> None:
            z = main_tensor([*arguments, *settings.values()])
            if z is not None:
                seen.setdefault(name, z.detach())

        return hook

    def leaves(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, returned: Any) -> None:
            z = main_tensor(returned)
            if z is not None:
                seen[name] = z.detach()

        return hook

    with ExitStack() as stack:
        for container, names in blocks.items():
            if modules is None:
                place = f"{container} in" if len(blocks) > 1 else "stem"
                first = named[names[0]]
                hook = first.register_forward_pre_hook(enters(place), with_kwargs=True)
                stack.callback(hook.remove)
            for name in names:
                stack.callback(named[name].register_forward_hook(leaves(name)).remove)
        raw = run()
    return seen, raw


def _lists_of_blocks(model: nn.Module) -> dict[str, list[str]]:
    """Names of blocks by the list that holds them."""
    paths = {block_path(name) for name, _ in model.named_parameters()} - {None}
    known = {".".join(path) for path in paths if path is not None}
    lists: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if name in known and any(module.children()):
            lists.setdefault(name.rpartition(".")[0], []).append(name)
    if not lists:
        raise ModelError(
            f"a {type(model).__name__} without lists of blocks",
            expected="blocks such as layers.0, layers.1, …",
            do="name the modules to measure with modules=[...]",
        )
    return lists


def _known(named: dict[str, nn.Module], modules: Sequence[str]) -> list[str]:
    if isinstance(modules, str):
        raise ConfigError(
            f"modules = '{modules}'", expected="a list of names", do=f"write ['{modules}']"
        )
    unknown = [name for name in modules if name not in named]
    if unknown:
        raise ConfigError(
            f"module '{unknown[0]}'",
            expected=f"one of {len(named)} modules, such as '{list(named)[-1]}'",
            do="correct the name",
        )
    return list(modules)


def _refuse_silent(modules: Sequence[str], signals: Mapping[str, Tensor]) -> None:
    silent = [name for name in modules if name not in signals]
    if silent:
        raise ModelError(
            f"module '{silent[0]}', which gave no tensor",
            expected="modules that the model calls",
            do="name another",
        )


def _epsilon(model: nn.Module) -> float:
    """ε of the first norm, by the names that torch and transformers give it; 1e-5 without any."""
    for module in model.modules():
        if type(module).__name__.endswith("Norm"):
            for name in ("eps", "variance_epsilon", "epsilon"):
                eps = getattr(module, name, None)
                if isinstance(eps, float):
                    return eps
    return 1e-5


def _possible(epsilon: object) -> float:
    if isinstance(epsilon, int | float) and 0 <= epsilon < math.inf:
        return float(epsilon)
    raise ConfigError(
        f"epsilon = {epsilon!r}", expected="a finite number, not negative", do="correct it"
    )
