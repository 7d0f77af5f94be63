"""From a model and settings to the rows of a plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from orderone.core.errors import ConfigError
from orderone.core.parameter_names import clean_name
from orderone.scaling.base import Base, Make, Measured, base_model, measure, require_comparable
from orderone.scaling.constants import (
    DISTRIBUTIONS,
    ONES,
    VISION,
    Constants,
    Distribution,
    constants_of,
)
from orderone.scaling.matching import bare, required_module
from orderone.scaling.multiplier import own_multiplier
from orderone.scaling.placing import find_roles
from orderone.scaling.rates import Rates, rates_of
from orderone.scaling.roles import Placement, Role, Roles, Start
from orderone.scaling.row import Row
from orderone.scaling.rule import output_multiplier
from orderone.scaling.strategy import Strategy
from orderone.scaling.strategy import strategy as strategy_of

UNDECAYED = ("bias", "gain", "relative-bias")
"""Groups without weight decay by default; the head's bias is another."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of ``orderone.plan``."""

    strategy: str | None
    s: float | None
    constants: str | Mapping[str, float] | Constants | None
    distribution: str | None
    overrides: Mapping[str, Role] | None
    base_width: int | None
    make: Make | None
    multiplier_in_fans: bool
    undecayed: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Begin:
    """How a parameter starts."""

    start: Start
    std: float | None
    distribution: Distribution = "normal"


UNTOUCHED = Begin(start="keep", std=None)


def planned(model: nn.Module, settings: Settings) -> dict[str, Any]:
    """The fields of the model's plan."""
    chosen = strategy_of(settings.strategy, s=settings.s)
    _require_possible(settings)
    bared = bare(required_module(model, "the model"))
    roles = roles_of(bared, settings.overrides)
    base = None if settings.base_width is None else _base(bared, roles, settings)
    constants = _constants(bared, roles, chosen, settings)
    rows = tuple(_row(p, roles.n, chosen, constants, base, settings) for p in roles.rows)
    return {
        "strategy": chosen.name,
        "s": chosen.s,
        "width": roles.n,
        "constants": _constants_name(constants, base),
        "rows": rows,
        "base_width": settings.base_width,
        **_multiplier(bared, roles, chosen, base),
    }


def roles_of(model: nn.Module, overrides: Mapping[str, Role] | None) -> Roles:
    """Every parameter placed, under names without wrappers' prefixes."""
    roles = find_roles(model, overrides)
    rows = (
        replace(row, name=clean_name(row.name), also=tuple(map(clean_name, row.also)))
        for row in roles.rows
    )
    head = None if roles.tied_head is None else clean_name(roles.tied_head)
    return replace(roles, rows=tuple(rows), tied_head=head)


def _row(
    placement: Placement,
    n: int,
    chosen: Strategy,
    constants: Constants | None,
    base: Base | None,
    settings: Settings,
) -> Row:
    role = placement.role
    rates = rates_of(placement, n=n, s=chosen.s, multiplier_in_fans=settings.multiplier_in_fans)
    if base is not None:
        there = rates_of(
            base.rows[placement.name],
            n=base.n,
            s=chosen.s,
            multiplier_in_fans=settings.multiplier_in_fans,
        )
        rates = rates.over(there)
        begin = _begin_from(placement, rates, base)
    else:
        begin = _begin(placement, rates, constants)
    if settings.distribution is not None:
        begin = replace(begin, distribution=_distribution(settings.distribution))
    assert role.fan_in is not None
    assert role.fan_out is not None
    return Row(
        name=placement.name,
        shape=placement.shape,
        role=role.group,
        fan_in=role.fan_in,
        fan_out=role.fan_out,
        lookup=role.lookup,
        head=role.head,
        start=begin.start,
        init_std=begin.std,
        distribution=begin.distribution,
        lr_factor=1.0 if chosen.uniform else rates.adamw,
        sgd_factor=1.0 if chosen.uniform else rates.sgd,
        decays=role.group not in settings.undecayed and not (role.lookup and role.head),
        reason=placement.reason,
        also=placement.also,
        zero_row=placement.zero_row,
    )


def _begin(placement: Placement, rates: Rates, constants: Constants | None) -> Begin:
    """Absolute convention: C_G times the rule's variance."""
    role = placement.role
    if constants is None or role.start == "keep":
        return UNTOUCHED
    if role.start != "draw":
        return Begin(start=role.start, std=0.0)
    variance = constants.variance(role.group, rates.variance)
    return Begin(
        start="draw",
        std=math.sqrt(variance),
        distribution=constants.distribution(role.group),
    )


def _begin_from(placement: Placement, relative: Rates, base: Base) -> Begin:
    """Relative convention: the base's own deviation; what is constant there stays the model's."""
    measured = base.measured[placement.name]
    if measured.std == 0 or placement.role.start in ("keep", "one"):
        return UNTOUCHED
    std = measured.std * math.sqrt(relative.variance)
    return Begin(start="draw", std=std, distribution=measured.distribution)


def _base(model: nn.Module, roles: Roles, settings: Settings) -> Base:
    assert settings.base_width is not None
    if settings.base_width == roles.n:
        # The model is its own base, and none of its weights will be touched.
        kept = Measured(std=0.0, distribution="normal")
        return Base(
            n=roles.n,
            rows={row.name: row for row in roles.rows},
            measured={row.name: kept for row in roles.rows},
            own_multiplier=_own_multiplier(model, roles),
        )
    small = bare(base_model(model, settings.base_width, settings.make))
    placed = roles_of(small, settings.overrides)
    require_comparable(roles, placed, settings.base_width)
    return Base(
        n=placed.n,
        rows={row.name: row for row in placed.rows},
        measured=measure(small, placed),
        own_multiplier=_own_multiplier(small, placed),
    )


def _multiplier(
    model: nn.Module, roles: Roles, chosen: Strategy, base: Base | None
) -> dict[str, Any]:
    """N_rescale and where it is applied; an untied head needs none."""
    if roles.tied_head is None:
        return {"output_multiplier": 1.0, "tied_head": None}
    if chosen.uniform:
        return {"output_multiplier": _own_multiplier(model, roles), "tied_head": None}
    total = output_multiplier(n=float(roles.n), s=chosen.s) * _word_scale(roles.rows)
    if base is not None:
        there = output_multiplier(n=float(base.n), s=chosen.s) * _word_scale(base.rows.values())
        total = base.own_multiplier * (total / there)
    return {"output_multiplier": total, "tied_head": roles.tied_head}


def _word_scale(rows: Iterable[Placement]) -> float:
    """The tied embedding's own scale: the head reads the matrix without it, so much smaller."""
    return max(row.role.scale if row.role.group == "word" else 1.0 for row in rows)


def _own_multiplier(model: nn.Module, roles: Roles) -> float:
    return 1.0 if roles.tied_head is None else own_multiplier(model, roles.tied_head)


def _constants(
    model: nn.Module, roles: Roles, chosen: Strategy, settings: Settings
) -> Constants | None:
    """The C_G; None where the model keeps its own initialisation."""
    if settings.constants is not None:
        groups = {row.role.group for row in roles.rows}
        return constants_of(settings.constants, groups)
    patches = any(row.role.group == "patch" for row in roles.rows)
    # The paper's standard runs differ in the factors alone; an outside model's start is its own.
    if chosen.uniform and not (patches and _is_ours(model)):
        return None
    return VISION if patches else ONES


def _is_ours(model: nn.Module) -> bool:
    """By name, since ``models`` is not to be imported here; FSDP2 puts a subclass in between."""
    return any(kind.__module__.startswith("orderone.models.") for kind in type(model).__mro__)


def _constants_name(constants: Constants | None, base: Base | None) -> str:
    if base is not None:
        return f"measured at width {base.n}"
    return "the model's own" if constants is None else constants.name


def _require_possible(settings: Settings) -> None:
    if settings.base_width is not None and settings.constants is not None:
        raise ConfigError(
            "constants together with base_width",
            expected="one of the two: at the base width the constants are the model's own",
            do="drop one",
        )
    if isinstance(settings.undecayed, str):  # its letters would be the groups
        raise ConfigError(
            f"undecayed = '{settings.undecayed}'",
            expected="a collection of groups",
            do=f"write ('{settings.undecayed}',)",
        )
    if settings.distribution is not None:
        _distribution(settings.distribution)


def _distribution(name: str) -> Distribution:
    for known in DISTRIBUTIONS:
        if name == known:
            return known
    raise ConfigError(
        f"distribution '{name}'", expected=f"one of {', '.join(DISTRIBUTIONS)}", do="choose one"
    )
