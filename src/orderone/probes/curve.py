"""How a network becomes its saturated one: cos(f(x; cθ), sf(x; θ)) over c, [MRGSS21] Fig. 4."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from orderone.core.errors import ConfigError
from orderone.core.parameter_names import kind_of
from orderone.core.selection import Selection
from orderone.probes.feeding import unwrapped
from orderone.probes.saturation import Into, Limit, Saturation, compared
from orderone.probes.scaled import ScaleOverflowError, Scaling, in_wider_type, scaled


def scaling_curve(
    model: nn.Module,
    batches: Iterable[object],
    *,
    cs: Sequence[float],
    large: float = 1024.0,
    limit: Limit | None = None,
    selection: Selection | None = None,
) -> tuple[Saturation, ...]:
    """Cosine of f(x; cθ) and sf(x; θ), with its controls, at each of ``cs``.

    sf is f at c = ``large``, or ``limit``: made from cθ, whose saturated network is that of θ.
    ``selection`` says which parameters are scaled.
    """
    if not cs or not 1 <= min(cs) <= max(cs) <= large:
        raise ConfigError(
            f"c = {', '.join(f'{c:g}' for c in cs) or 'none'}",
            expected=f"numbers from 1 to {large:g}, that of the saturated network",
            do="give for example 1, 2, 5, 10",
        )
    given = list(batches)

    def up_to(c: float) -> Limit:
        def far(of: nn.Module) -> Into:
            scaling = Scaling(of, large / c, selection=selection)
            return lambda: scaling

        return far

    return tuple(_point(model, given, c, limit or up_to(c), selection) for c in cs)


@torch.no_grad()
def without_biases(model: nn.Module) -> nn.Module:
    """A copy whose biases, those of norms among them, are zero."""
    bare = copy.deepcopy(unwrapped(model))
    for name, parameter in bare.named_parameters():
        if kind_of(name) == "biases":
            parameter.zero_()
    return bare


def _point(
    model: nn.Module, batches: list[object], c: float, limit: Limit, selection: Selection | None
) -> Saturation:
    model, notes = unwrapped(model), tuple[str, ...]()
    while True:
        try:
            with scaled(model, c, selection=selection):
                found = compared(model, batches, limit)
            return replace(found, c=c, notes=(*notes, *found.notes))
        except ScaleOverflowError as error:
            model, note = in_wider_type(model, error)
            notes = (*notes, note)
