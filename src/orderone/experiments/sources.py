"""MODEL on the command line: one of ours by ``preset:NAME``, or an outside model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from orderone.models.build import build
from orderone.models.config import Config
from orderone.models.presets import preset
from orderone.scaling.adapters import Source, outside_source
from orderone.scaling.width import config_at_width


@dataclass(frozen=True, kw_only=True)
class OurSource(Source):
    """A reference transformer."""

    config: Config

    @property
    def kind(self) -> str:
        return "ours"

    def make(self, width: int | None) -> nn.Module:
        config = self.config if width is None else config_at_width(self.config, width)
        return build(config)


def source(name: str) -> Source:
    """The model of that name: preset:NAME, a path, timm:NAME or package.module:factory."""
    if name.startswith("preset:"):
        return OurSource(name=name, config=preset(name.removeprefix("preset:")))
    return outside_source(name)
