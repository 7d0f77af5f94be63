"""Plan: a model's initialisation and learning rates from the one rule of scaling."""

from __future__ import annotations

import json
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from orderone.core.errors import ConfigError, ModelError
from orderone.scaling import groups, multiplier, table
from orderone.scaling.base import Make
from orderone.scaling.constants import Constants
from orderone.scaling.initialize import initialize_
from orderone.scaling.matching import parameters_of
from orderone.scaling.plan_json import read_plan, written_plan
from orderone.scaling.planning import UNDECAYED, Settings, planned
from orderone.scaling.roles import Role
from orderone.scaling.row import Row

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How every parameter of a model starts and learns: a value, keyed by parameter name.

    It holds no tensor and only a weak reference to the model that it was made for; every method
    takes another instance as ``model``, wrapped by DDP, FSDP2 or torch.compile or not.
    """

    strategy: str
    s: float
    width: int
    """n, which s acts on."""
    constants: str
    """Name of the C_G."""
    rows: tuple[Row, ...]
    output_multiplier: float = 1.0
    """N_rescale, all in all: what the model multiplies its logits by itself is part of it."""
    tied_head: str | None = None
    """Module that the output multiplier is applied at; None: at none."""
    base_width: int | None = None
    _model: weakref.ref[nn.Module] | None = field(default=None, repr=False, compare=False)

    @property
    def parameters(self) -> int:
        """Elements of all parameters, tied ones once."""
        return sum(row.size for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if name in (row.name, *row.also):
                return row
        raise KeyError(name)

    def on(self, model: nn.Module) -> Plan:
        """The same plan bound to another instance, whose output multiplier is installed.

        What to call after ``from_pretrained``: weights stay, and the hook is not in the file.
        """
        parameters_of(model, self.rows)
        self._multiply(model)
        return replace(self, _model=weakref.ref(model))

    def initialize_(self, *, seed: int = 0, model: nn.Module | None = None) -> None:
        """Draws the initial weights in place and installs the output multiplier.

        A tensor's numbers depend on ``seed`` and its name alone: not on order, device or sharding.
        """
        model = self._instance(model)
        initialize_(parameters_of(model, self.rows), self.rows, seed=seed)
        self._multiply(model)

    def param_groups(
        self,
        lr: float,
        weight_decay: float = 0.0,
        *,
        optimizer: str = "adamw",
        model: nn.Module | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer, one for each distinct factor.

        ``optimizer`` is ``"adamw"`` for any that divides by the size of the gradient, ``"sgd"``
        for others. Schedules that scale need nothing more; see ``maxima`` for those that set.
        """
        parameters = parameters_of(self._instance(model), self.rows)
        return groups.param_groups(
            self.rows, parameters, lr=lr, weight_decay=weight_decay, optimizer=optimizer
        )

    def maxima(
        self, lr: float, *, optimizer: str = "adamw", model: nn.Module | None = None
    ) -> list[float]:
        """Learning rate of every group of ``param_groups``: ``OneCycleLR(max_lr=...)``."""
        made = self.param_groups(lr, optimizer=optimizer, model=model)
        return [group["lr"] for group in made]

    def table(self) -> polars.DataFrame:
        """A row for every parameter: role, fans, deviation, factors, and why the role."""
        return table.frame(self.rows)

    def listing(self) -> str:
        """The table as plain text, nothing cut."""
        return table.listing(self.rows)

    def summary(self) -> dict[str, Any]:
        """What ``orderone plan --json`` prints."""
        return {
            "parameters": self.parameters,
            "width": self.width,
            "strategy": self.strategy,
            "s": self.s,
            "output_multiplier": self.output_multiplier,
            "rows": [table.record(row) for row in self.rows],
        }

    def to_json(self) -> str:
        """All of the plan but its model; ``from_json`` gives back an equal one."""
        return json.dumps(written_plan(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote; bind it with ``on(model)``."""
        return cls(**read_plan(text))

    def __str__(self) -> str:
        return table.text(self.headline, self.rows, self.footline)

    def _repr_html_(self) -> str:
        return table.html(self.headline, self.rows, self.footline)

    @property
    def headline(self) -> str:
        """Strategy, width, constants and size in a sentence."""
        at = "" if self.base_width is None else f" relative to width {self.base_width}"
        return (
            f"{self.strategy} (s = {self.s:g}) at width {self.width}{at}, constants"
            f" {self.constants}: {self.parameters:,} parameters in {len(self.rows)} tensors"
        )

    @property
    def footline(self) -> str:
        """Where the output multiplier acts; empty where there is none."""
        if self.tied_head is None:
            return ""
        return f"output multiplier {self.output_multiplier:.4g} at '{self.tied_head}'"

    def _instance(self, model: nn.Module | None) -> nn.Module:
        if model is not None:
            return model
        alive = None if self._model is None else self._model()
        if alive is None:
            raise ModelError(
                "a plan without a model",
                expected="the model that it was made for to be alive",
                do="pass model=..., or bind it: plan.on(model)",
            )
        return alive

    def _multiply(self, model: nn.Module) -> None:
        if self.tied_head is None:
            multiplier.remove_(model)
        else:
            multiplier.install_(model, self.tied_head, self.output_multiplier)

    def __getstate__(self) -> dict[str, Any]:
        # A weak reference can't be pickled; a plan read back is bound with ``on``.
        return {**self.__dict__, "_model": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self  # a value: nothing in it changes, and a copy of the model is another model


def plan(
    model: nn.Module,
    strategy: str | None = None,
    *,
    s: float | None = None,
    constants: str | Mapping[str, float] | Constants | None = None,
    distribution: str | None = None,
    overrides: Mapping[str, Role] | None = None,
    base_width: int | None = None,
    make: Make | None = None,
    multiplier_in_fans: bool = True,
    undecayed: Collection[str] = UNDECAYED,
) -> Plan:
    """How every parameter of a model should start and learn, [DYZ23] eqs. (1.25)–(1.34), (1.94),
    (1.99)–(1.116).

    ``strategy`` is "neural-tangent" (s = 0), "hybrid" (½), "maximal-update" (1), "standard"
    (uniform factors; the model's own initialisation, unless ``constants`` are given), or ``s`` a
    number in [0, 1]. ``constants`` are the C_G: "ones", "vision", "language", "language-word" or
    numbers by group; by default vision's for a model with a patch stem and ones for others.
    ``distribution`` replaces the constants' own. ``overrides`` maps patterns of names to roles.
    ``base_width`` makes everything relative to the model at that width, built from its
    configuration or by ``make(width)``. ``multiplier_in_fans=False`` drops M from the factors of
    W and X as the paper's runs did. ``undecayed`` are the groups without weight decay, beside the
    head's bias.
    """
    settings = Settings(
        strategy=strategy,
        s=s,
        constants=constants,
        distribution=distribution,
        overrides=overrides,
        base_width=base_width,
        make=make,
        multiplier_in_fans=multiplier_in_fans,
        undecayed=undecayed,
    )
    if make is not None and base_width is None:
        raise ConfigError(
            "make without base_width", expected="the width to make", do="give base_width=..."
        )
    return Plan(**planned(model, settings), _model=weakref.ref(model))
