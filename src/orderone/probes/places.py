"""Where an attention stands in a model: its layer, its stack, and what its mask ought to hide."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from orderone.core.errors import ModelError
from orderone.core.parameter_names import block_path, clean_name
from orderone.probes.hidden import tower_names

_CROSS = re.compile(r"cross|encoder_?att|enc_?dec|mixed", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Place:
    """An attention: ``cross`` looks from the decoder at the encoder."""

    label: str
    tower: str
    cross: bool


class Places:
    """Labels of a model's attentions by their modules' paths."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {clean_name(name): module for name, module in model.named_modules()}
        try:
            self.towers = tower_names(model)
        except ModelError:
            self.towers = dict[str, str]()
        self.claims = _claims_causal(model)
        self.decodes = any(self._tower(path) == "decoder" for path in self.modules)
        self.causal: dict[str, bool] = {}

    def at(self, path: str) -> Place:
        cross = bool(_CROSS.search(path) or _CROSS.search(type(self.modules[path]).__name__))
        tower = self._tower(path)
        place = Place(label=self._label(path, cross), tower=tower, cross=cross)
        self.causal[place.label] = not cross and (
            self.claims or (self.decodes and tower == "decoder")
        )
        return place

    def is_causal(self, label: str) -> bool:
        """Whether the model says of itself that it does not look at the future there."""
        return self.causal.get(label.partition(" (")[0], False)

    def _tower(self, path: str) -> str:
        """encoder or decoder, where there are both."""
        if len(set(self.towers.values())) < 2:
            return ""
        parts = path.split(".")
        return next((part for part in parts if part in ("encoder", "decoder")), "")

    def _label(self, path: str, cross: bool) -> str:
        block = block_path(f"{path}.weight")
        if block is None:
            return path
        *owner, index = block
        tower = self.towers.get(".".join(owner), "")
        return ".".join([*([tower] if tower else []), index, *(["cross"] if cross else [])])


def _claims_causal(model: nn.Module) -> bool:
    config: Any = getattr(model, "config", None)
    if hasattr(config, "kind"):  # ours
        return bool(getattr(config, "causal", False))
    both = getattr(config, "is_encoder_decoder", False) is True
    return not both and getattr(config, "is_decoder", False) is True
