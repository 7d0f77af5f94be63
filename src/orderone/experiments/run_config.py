"""A training run as one TOML file describes it: model, plan, data, and the course of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from orderone.core.errors import ConfigError
from orderone.data.tokenizer import Tokenizer
from orderone.experiments.sources import OurSource, source
from orderone.models.config import CONFIGS, WordsConfig, read_config
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


class DataConfig(Settings):
    """A corpus, and how it becomes batches."""

    corpus: str = "stdlib"
    folder: str | None = None
    limit: PositiveInt | None = None
    """Bytes of ``stdlib``."""
    tokenizer: Literal["byte-pairs", "words"] = "byte-pairs"
    vocabulary: PositiveInt = 4096
    """Most tokens, the special ones included."""
    T: PositiveInt = 128
    """Tokens of a sequence."""
    batches: Literal["packed", "sentences"] = "packed"
    """Windows of one long text, or sentences bucketed by length."""


class RunConfig(TrainingConfig):
    """All of a run. ``model`` has a ``name``, as on the command line, or a ``kind`` and letters."""

    model: dict[str, Any]
    plan: PlanConfig = Field(default_factory=PlanConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    spikes: SpikesConfig = Field(default_factory=SpikesConfig)


def read_run_config(path: str | Path) -> RunConfig:
    """The configuration in a TOML file."""
    return checked(RunConfig, read_toml(path))


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the data demands of a model: so many words, sequences so long."""

    vocabulary: int
    T: int


def model_source(model: Mapping[str, Any], words: Words) -> Source:
    """The model that a configuration speaks of, checked to be one that learns from text.

    A ``kind`` without ``n_vocab`` or ``T`` takes them from the data.
    """
    found = _source(dict(model), words)
    if isinstance(found, OurSource):
        _require_fit(found.config, words)
    return found


def _source(model: dict[str, Any], words: Words) -> Source:
    if ("name" in model) == ("kind" in model):
        raise ConfigError(
            f"a [model] with {', '.join(model) or 'nothing'}",
            expected="either name (preset:NAME, a folder, package.module:factory) or kind",
            do="give one of the two",
        )
    if "kind" in model:
        if model["kind"] == "language":
            model = {"n_vocab": words.vocabulary, "T": words.T, **model}
        return OurSource(name=str(model["kind"]), config=read_config(model))
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


def _require_fit(config: Any, words: Words) -> None:
    if config.kind != "language" or not config.causal:
        raise ConfigError(
            f"a model of kind '{config.kind}'"
            + ("" if config.kind != "language" else ", not causal"),
            expected="a causal language model, which learns the next word of a corpus",
            do=f"choose kind = 'language' (of {', '.join(CONFIGS)}) with causal = true",
        )
    assert isinstance(config, WordsConfig)
    if config.n_vocab < words.vocabulary or config.T < words.T:
        raise ConfigError(
            f"a model with n_vocab = {config.n_vocab} and T = {config.T}",
            expected=f"room for the data's {words.vocabulary} words and T = {words.T}",
            do="enlarge the model, or lower data.vocabulary and data.T",
        )


def words_of(tokenizer: Tokenizer, data: DataConfig) -> Words:
    """What the data demands of a model."""
    return Words(vocabulary=len(tokenizer), T=data.T)
