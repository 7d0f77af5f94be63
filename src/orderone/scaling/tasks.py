"""What a model is fed and how its loss is computed, told from the model itself.

Ours by their configuration's kind, transformers' by their main input, timm's by their input size,
anything else by the module that it begins with. The content, random or real, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.errors import ModelError
from orderone.scaling.hugging_tasks import transformers_task
from orderone.scaling.lesson import (
    LONGEST,
    Batch,
    Task,
    cross_entropy,
    forward,
    labelled,
    masked_word,
    next_word,
    pixels,
    renamed,
    source_and_target,
)

__all__ = ["Batch", "Task", "forward", "task"]


def task(model: nn.Module) -> Task:
    """The task that a model's class and configuration tell; ModelError when they do not."""
    found = _told(model)
    return replace(found, loss=_in_one_line(found.loss))


def _told(model: nn.Module) -> Task:
    config: Any = getattr(model, "config", None)
    if hasattr(config, "kind"):
        return _ours(config)
    if hasattr(config, "model_type"):
        return transformers_task(model, config)
    if hasattr(model, "pretrained_cfg") and hasattr(model, "num_classes"):
        channels_and_size = tuple(int(size) for size in _timm_size(model))
        return pixels(channels_and_size, int(_number(model, "num_classes")), name=None)
    return _by_first_module(model)


def _in_one_line(
    loss: Callable[[nn.Module, Batch], Tensor],
) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss; a model that does not take what we guessed is refused by name."""

    def computed(model: nn.Module, batch: Batch) -> Tensor:
        try:
            return loss(model, batch)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ModelError(
                f"a {type(model).__name__} that fails on a guessed batch of "
                f"{', '.join(batch)} ({type(error).__name__}: {error})",
                expected="a model that takes it",
                do="correct its configuration, or give inputs= and loss= in Python",
            ) from error

    return computed


def _ours(config: Any) -> Task:
    if config.kind == "vision":
        shape = (config.channels, config.image_size, config.image_size)
        return pixels(shape, config.n_out, name=None)
    if config.kind == "encoder-decoder":
        return Task(
            signal="words",
            shape=(min(LONGEST, config.T) + 1,),
            classes=config.n_vocab,
            arrange=source_and_target,
            loss=cross_entropy,
            pad=config.pad,
        )
    arrange = next_word if config.causal else masked_word
    return Task(
        signal="words",
        shape=(min(LONGEST, config.T) + int(config.causal),),
        classes=min(config.n_vocab, config.outputs),
        arrange=lambda words, _: renamed(arrange(words), "tokens"),
        loss=cross_entropy,
        pad=config.pad,
    )


def _by_first_module(model: nn.Module) -> Task:
    """A model of no known house: fed with what its first module takes."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return Task(
                signal="words",
                shape=(LONGEST + 1,),
                classes=module.num_embeddings,
                arrange=lambda words, _: next_word(words),
                loss=cross_entropy,
            )
        if isinstance(module, nn.Linear):
            return _numbers((module.in_features,), _last_width(model))
    raise ModelError(
        f"no way to feed a {type(model).__name__}",
        expected="a model of ours, of transformers or of timm, or one that begins with a Linear "
        "or an Embedding",
        do="give inputs= and loss= in Python: orderone.coordinates(make, ...)",
    )


def _numbers(shape: tuple[int, ...], classes: int) -> Task:
    return Task(
        signal="numbers",
        shape=shape,
        classes=classes,
        arrange=lambda inputs, labels: labelled(inputs, labels, None),
        loss=cross_entropy,
    )


def _timm_size(model: nn.Module) -> tuple[int, ...]:
    config: Any = model.pretrained_cfg
    channels, *_ = config["input_size"]
    embed: Any = getattr(model, "patch_embed", None)
    size = getattr(embed, "img_size", None) or config["input_size"][1:]
    return (channels, *size)


def _number(model: nn.Module, name: str) -> float:
    value = getattr(model, name)
    assert isinstance(value, int)
    return value


def _last_width(model: nn.Module) -> int:
    maps = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return maps[-1].out_features
