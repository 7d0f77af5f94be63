"""Groups of parameters and their learning-rate factors λ_G, from a plan, a mapping or names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.parameter_names import clean_name, role_of

Optimizer = Literal["sgd", "adamw"]
Groups = Mapping[str, tuple[str, float]]
"""Group and factor λ by parameter name."""


class PlannedRow(Protocol):
    """A parameter's line in a plan."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    def factor(self, optimizer: Optimizer, /) -> float: ...


@runtime_checkable
class Planned(Protocol):
    """What a plan says of every parameter."""

    @property
    def rows(self) -> Iterable[Any]: ...


def grouping(model: nn.Module, groups: Planned | Groups | None, optimizer: str) -> Groups:
    """Group and factor of every trained parameter that is measured.

    Without ``groups``, all of them by role, with factor 1. Tied parameters go by any of their
    names; those that a mapping does not name are left out.
    """
    if optimizer not in ("sgd", "adamw"):
        raise ConfigError(f"optimizer '{optimizer}'", expected="sgd or adamw", do="choose one")
    trained = trained_parameters(model)
    if groups is None:
        return {name: (role_of(name), 1.0) for name in trained}
    given = groups if isinstance(groups, Mapping) else _planned(groups, optimizer)
    aliases = _aliases(model)
    chosen: dict[str, tuple[str, float]] = {}
    for name, (group, factor) in given.items():
        first = aliases.get(clean_name(name))
        if first is None:
            raise ConfigError(
                f"groups name '{name}'",
                expected="names of this model's parameters",
                do="make the groups or the plan for this model",
            )
        if first in trained:
            chosen[first] = (group, float(factor))
    if not chosen:
        raise ConfigError(
            "groups without a trained parameter", expected="at least one", do="name some"
        )
    return chosen


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters with a gradient, tied ones once, by cleaned name."""
    found = {clean_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ModelError(
            f"a {type(model).__name__} without trained parameters",
            expected="at least one with requires_grad",
            do="unfreeze what is to be measured",
        )
    return found


def _aliases(model: nn.Module) -> dict[str, str]:
    """First name of each parameter by every name that it has."""
    first = {id(p): clean_name(n) for n, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {clean_name(name): first[id(parameter)] for name, parameter in every}


def _planned(plan: Planned, optimizer: Optimizer) -> Groups:
    rows: Iterable[PlannedRow] = getattr(plan, "rows", ())
    found = {row.name: (row.role, row.factor(optimizer)) for row in rows}
    if not found:
        raise ConfigError(
            f"groups of type {type(plan).__name__}",
            expected="a plan, or a mapping of names to (group, factor)",
            do="pass orderone.plan(model), or leave groups out",
        )
    return found
