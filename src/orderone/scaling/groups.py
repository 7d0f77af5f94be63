"""Parameter groups of an optimizer: one for each distinct factor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from torch import nn

from orderone.core.errors import ConfigError
from orderone.scaling.row import OptimizerKind, Row


def param_groups(
    rows: Iterable[Row],
    parameters: Mapping[str, nn.Parameter],
    *,
    lr: float,
    weight_decay: float,
    optimizer: str,
) -> list[dict[str, Any]]:
    """Groups of equal factor λ̃ and equal use of weight decay, names kept.

    [DYZ23] eq. (1.94): θ ← (1 − η·wd)θ − ηλ̃ m̂/(√v̂ + ε), where the decay is not multiplied by λ̃.
    torch's optimizers decay by (group lr)·(group weight decay), hence wd/λ̃. Frozen parameters are
    in no group.
    """
    _require_rate("lr", lr)
    _require_rate("weight_decay", weight_decay)
    kind = _kind(optimizer)
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        if parameters[row.name].requires_grad:
            # Equal but for the order of operations: 12 digits, of which float64 has 15.
            groups.setdefault((f"{row.factor(kind):.12g}", row.decays), []).append(row)
    return [
        _group(members, parameters, lr=lr, weight_decay=weight_decay, kind=kind)
        for members in groups.values()
    ]


def _group(
    members: list[Row],
    parameters: Mapping[str, nn.Parameter],
    *,
    lr: float,
    weight_decay: float,
    kind: OptimizerKind,
) -> dict[str, Any]:
    factor = members[0].factor(kind)
    return {
        "params": [parameters[row.name] for row in members],
        # torch's own key: optimizers keep it, and their state dicts carry it.
        "param_names": [row.name for row in members],
        "name": ", ".join(dict.fromkeys(row.role for row in members)),
        "lr": lr * factor,
        "weight_decay": weight_decay / factor if members[0].decays else 0.0,
    }


def _kind(optimizer: str) -> OptimizerKind:
    if optimizer not in get_args(OptimizerKind):
        raise ConfigError(
            f"optimizer '{optimizer}'",
            expected=f"one of {', '.join(get_args(OptimizerKind))}",
            do="choose adamw for any that divides by the size of the gradient, sgd for any other",
        )
    return cast(OptimizerKind, optimizer)


def _require_rate(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} = {value}", expected="a finite number ≥ 0", do=f"correct {name}")
