"""Samples that are taken together and stay apart.

One by one, samples make many small matrix products. ``torch.vmap`` runs the model on all of them,
while every tensor of the model keeps one sample's shape, so that nothing of the model's own can mix
them: a tensor that they would share, such as positions', stays one for each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn


class ApartError(Exception):
    """A model that cannot be run on several samples in this way."""


Run = Callable[[Sequence[Tensor], Tensor, Mapping[str, Tensor]], Tensor]
"""From one sample's tensors, its own zero, and its own copies of the parameters, to its output."""


def together(
    run: Run,
    tensors: Sequence[Tensor],
    roots: Tensor,
    parameters: Mapping[str, nn.Parameter],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of all samples, stacked, and the samples' own copies of the parameters, likewise."""
    count = len(roots)
    own = {
        name: p.detach().expand(count, *p.shape).requires_grad_(p.is_floating_point())
        for name, p in parameters.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that vmap takes one after another
            y = torch.vmap(run)(tensors, roots, own)
    except Exception as error:
        # Control flow by values, operations in place on a shared tensor, an operation without a
        # rule: each has its own kind of error, and taken alone the sample tells what is wrong.
        raise ApartError(str(error)) from error
    return y, own


def level() -> int | None:
    """How many transformations of functions (``torch.func``) the call is inside of."""
    return torch._C._functorch.maybe_current_level()  # pyright: ignore


def samples_beneath(x: Tensor) -> tuple[Tensor, int | None]:
    """The tensor that holds x of every sample, and the axis of samples; x itself if it has none."""
    functorch = torch._C._functorch  # pyright: ignore  # nothing public tells
    if not functorch.is_batchedtensor(x):
        return x, None
    return functorch.get_unwrapped(x), functorch.maybe_get_bdim(x)
