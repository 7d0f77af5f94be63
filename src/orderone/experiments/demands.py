"""What a run's data demands of its model: the kind, the sizes, and the loss that it learns by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.models.config import CONFIGS, Config, VisionConfig, WordsConfig
from orderone.training.losses import (
    class_loss,
    next_word_loss,
    next_word_loss_of_transformers,
    restored_loss,
)

Loss = Callable[[nn.Module, Any], Tensor]


class Demands(ABC):
    """Of one kind of data."""

    kind: str
    """Of our models, the one that learns from it."""
    wanted: str
    """What that is, in a sentence."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a model takes from the data where its configuration does not say."""

    def require_fit(self, config: Config) -> None:
        """ConfigError where one of our models cannot learn from the data."""
        if config.kind != self.kind:
            raise self.another(f"a model of kind '{config.kind}'")

    @abstractmethod
    def require_outside(self, model: nn.Module, kind: str) -> None:
        """The same of an outside model; ``kind`` says whose it is."""

    @abstractmethod
    def loss(self, kind: str) -> Loss:
        """Of a model of that kind of source, in nats."""

    def another(self, found: str) -> ConfigError:
        """The refusal of a model."""
        return ConfigError(
            found,
            expected=self.wanted,
            do=f"choose kind = '{self.kind}' (of {', '.join(CONFIGS)}), or other data",
        )


@dataclass(frozen=True, kw_only=True)
class Words(Demands):
    """Text to be continued: so many words, sequences so long."""

    vocabulary: int
    T: int

    kind = "language"
    wanted = "a causal language model, which learns the next word of a corpus"

    def settings(self) -> dict[str, Any]:
        return {"n_vocab": self.vocabulary, "T": self.T}

    def require_fit(self, config: Config) -> None:
        super().require_fit(config)
        if config.kind == "language" and not config.causal:
            raise self.another("a model of kind 'language', not causal")
        assert isinstance(config, WordsConfig)
        if config.n_vocab < self.vocabulary or config.T < self.T:
            raise ConfigError(
                f"a model with n_vocab = {config.n_vocab} and T = {config.T}",
                expected=f"room for the data's {self.vocabulary} words and T = {self.T}",
                do="enlarge the model, or lower data.vocabulary and data.T",
            )
        if config.outputs < self.vocabulary:
            raise ConfigError(
                f"a model with n_out = {config.outputs}",
                expected=f"an output for each of the data's {self.vocabulary} words",
                do="leave out model.n_out, or lower data.vocabulary",
            )

    def require_outside(self, model: nn.Module, kind: str) -> None:
        if kind == "timm":
            raise self.another(f"a {type(model).__name__} of timm, which learns from images")
        if kind != "transformers":
            return
        if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
            raise ModelError(
                f"a {type(model).__name__}",
                expected="a causal language model, such as LlamaForCausalLM",
                do="name one under 'architectures' in its config.json",
            )
        settings: Any = model.config
        if settings.vocab_size < self.vocabulary:
            raise ConfigError(
                f"vocab_size = {settings.vocab_size} for a text of {self.vocabulary} words",
                expected="a row for every word",
                do="enlarge the model's vocabulary, or lower data.vocabulary",
            )

    def loss(self, kind: str) -> Loss:
        return next_word_loss_of_transformers if kind == "transformers" else next_word_loss


@dataclass(frozen=True, kw_only=True)
class Spans(Words):
    """Text to be restored, with a [pad] that no word is."""

    pad: int

    kind = "encoder-decoder"
    wanted = "an encoder–decoder, which restores the spans that are masked in a corpus"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "pad": self.pad}

    def require_fit(self, config: Config) -> None:
        super().require_fit(config)
        assert isinstance(config, WordsConfig)
        if config.pad != self.pad:
            raise ConfigError(
                f"a model with pad = {config.pad}",
                expected=f"{self.pad}, the tokenizer's [pad], whose row starts at zero",
                do=f"set model.pad = {self.pad}",
            )

    def require_outside(self, model: nn.Module, kind: str) -> None:
        if kind in ("timm", "transformers"):
            raise self.another(f"a {type(model).__name__} of {kind}")

    def loss(self, kind: str) -> Loss:
        return restored_loss


@dataclass(frozen=True, kw_only=True)
class Pictures(Demands):
    """Images to be told apart."""

    channels: int
    size: int
    classes: int

    kind = "vision"
    wanted = "a vision model, which learns the class of an image"

    def settings(self) -> dict[str, Any]:
        return {"channels": self.channels, "image_size": self.size, "n_out": self.classes}

    def require_fit(self, config: Config) -> None:
        super().require_fit(config)
        assert isinstance(config, VisionConfig)
        if config.head == "per-token":
            raise self.another("a vision model with head 'per-token'")
        mine = f"{self.channels}×{self.size}×{self.size}"
        its = f"{config.channels}×{config.image_size}×{config.image_size}"
        if its != mine or config.n_out < self.classes:
            raise ConfigError(
                f"a model of {config.n_out} classes of images of {its}",
                expected=f"the data's {self.classes} classes and {mine}",
                do="leave out model.n_out, .channels and .image_size, or set images.size",
            )

    def require_outside(self, model: nn.Module, kind: str) -> None:
        if kind == "transformers":
            raise self.another(f"a {type(model).__name__} of transformers")
        classes = getattr(model, "num_classes", self.classes)
        if classes < self.classes:
            raise self.another(f"a head of {classes} classes for {self.classes}")

    def loss(self, kind: str) -> Loss:
        return class_loss
