"""A training run as one TOML file describes it: model, plan, data, and the course of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from orderone.core.errors import ConfigError
from orderone.experiments.demands import Demands
from orderone.experiments.sources import OurSource, source
from orderone.models.config import CONFIGS, Size, read_config
from orderone.models.presets import preset
from orderone.scaling.adapters import Source
from orderone.training.config import Settings, TrainingConfig, checked, read_toml
from orderone.training.rollback import SpikesConfig


class PlanConfig(Settings):
    """What ``orderone.plan`` is asked for."""

    strategy: str | None = None
    s: float | None = None
    constants: str | dict[str, float] | None = None
    base_width: PositiveInt | None = None
    multiplier_in_fans: bool = True
    """False drops M from the factors of W and X, as the paper's runs did."""


class DataConfig(Settings):
    """A corpus, and how it becomes batches."""

    corpus: str = "stdlib"
    folder: str | None = None
    limit: PositiveInt | None = None
    """Bytes of ``stdlib``."""
    tokenizer: Literal["byte-pairs", "words"] = "byte-pairs"
    tokenizer_folder: str | None = None
    """Byte pairs that are read, such as GPT-2's, instead of learned from the corpus."""
    vocabulary: PositiveInt = 4096
    """Most tokens, the special ones included."""
    T: Size = 128
    """Tokens of a sequence."""
    batches: Literal["packed", "sentences", "spans"] = "packed"
    """Windows of one long text, sentences bucketed by length, or spans to be restored."""


class ImagesConfig(Settings):
    """A set of images, in place of a corpus."""

    name: str
    """``digits``, ``mnist``, ``fashion-mnist``, or the path of a folder."""
    folder: str | None = None
    size: PositiveInt | None = None
    """Pixels of a side; as they are, and 224 for image files, where not given."""
    augmentation: str = "none"
    """``light`` or ``paper``; see ``data.augmentation``."""
    held_out: Literal["validation", "test"] = "validation"
    """What is evaluated on: after a search over settings, images that it never saw."""


class RunConfig(TrainingConfig):
    """All of a run. ``model`` has a ``name``, as on the command line, or a ``kind`` and letters."""

    model: dict[str, Any]
    plan: PlanConfig = Field(default_factory=PlanConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    images: ImagesConfig | None = None
    """What a model of images learns from; there is no corpus then."""
    spikes: SpikesConfig = Field(default_factory=SpikesConfig)

    @model_validator(mode="after")
    def _one_kind_of_data(self) -> RunConfig:
        if self.images is not None and self.data != DataConfig():
            raise ConfigError(
                "both [data] and [images]", expected="one of the two", do="remove the other"
            )
        return self


def read_run_config(path: str | Path) -> RunConfig:
    """The configuration in a TOML file."""
    return checked(RunConfig, read_toml(path))


def model_source(model: Mapping[str, Any], demands: Demands) -> Source:
    """The model that a configuration speaks of, checked to be one that learns from the data.

    A ``kind`` without ``n_vocab`` and ``T``, or ``image_size``, ``channels`` and ``n_out``, takes
    them from the data.
    """
    found = _source(dict(model), demands)
    if isinstance(found, OurSource):
        demands.require_fit(found.config)
    return found


def _source(model: dict[str, Any], demands: Demands) -> Source:
    if ("name" in model) == ("kind" in model):
        raise ConfigError(
            f"a [model] with {', '.join(model) or 'nothing'}",
            expected="either name (preset:NAME, a folder, package.module:factory) or kind",
            do="give one of the two",
        )
    if "kind" in model:
        kind = model["kind"]
        if isinstance(kind, str) and kind in CONFIGS and kind != demands.kind:
            raise demands.another(f"a model of kind '{kind}'")
        config = read_config({**demands.settings(), **model})
        return OurSource(name=str(model["kind"]), config=config)
    name = model.pop("name")
    if not isinstance(name, str):
        raise ConfigError(f"model.name = {name!r}", expected="a string", do="correct it")
    if name.startswith("preset:"):
        config = preset(name.removeprefix("preset:"), **model)
        return OurSource(name=name, config=config)
    if model:
        raise ConfigError(
            f"model.{next(iter(model))} beside model.name = '{name}'",
            expected="settings beside the name of a preset only",
            do="change that model's own configuration",
        )
    return source(name)
