"""What a model of transformers is fed and how its loss is computed, by its class and inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ModelError
from orderone.core.generators import generator_for
from orderone.scaling.lesson import (
    LONGEST,
    Batch,
    Task,
    forward,
    masked_word,
    outputs_of,
    pixels,
    renamed,
    source_and_target,
)

_SEES_ALL = ("MaskedLM", "WithLMHeadModel", "XLNetLMHeadModel")
"""Classes whose labels are not shifted: every word sees every word, itself too unless hidden."""
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
"""Classes whose labels are classes: one a text, one a word."""


def transformers_task(model: nn.Module, config: Any) -> Task:
    name = str(getattr(model, "main_input_name", "input_ids"))
    loss = _own_loss if _takes_labels(model) else _to_random_targets
    if name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        classes = getattr(config, "num_labels", 1)
        shape = (config.num_channels, height, width)
        return pixels(shape, classes, name=name, loss=loss, labels=loss is _own_loss)
    if name == "input_features":
        return _sound(config, loss)
    if name != "input_ids":
        raise ModelError(
            f"a {type(model).__name__} fed with '{name}'",
            expected="input_ids, pixel_values or input_features",
            do="give inputs= and loss=",
        )
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    pad = getattr(text, "pad_token_id", None)
    return Task(
        signal="words",
        shape=(_longest(text),),
        classes=int(text.vocab_size),
        arrange=_arranged_words(model, config, labels=loss is _own_loss),
        loss=loss,
        pad=pad if isinstance(pad, int) and 0 <= pad < text.vocab_size else None,
    )


def _longest(config: Any) -> int:
    """Tokens that fit; XLNet, which has no limit, writes −1."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return LONGEST
    # RoBERTa's positions start after its [pad], so that two are never used.
    return min(LONGEST, max(2, positions - 2))


def _arranged_words(
    model: nn.Module, config: Any, *, labels: bool
) -> Callable[[Tensor, Tensor | None], Batch]:
    kind = type(model).__name__

    def arrange(words: Tensor, _: Tensor | None) -> Batch:
        if labels and kind.endswith(_CLASSIFIERS):
            classes = _classes_of(words, config.num_labels)
            per_text = kind.endswith(_CLASSIFIERS[0])
            return {"input_ids": words, "labels": classes[:, 0] if per_text else classes}
        if getattr(config, "is_encoder_decoder", False):
            batch = source_and_target(words)
            kept = {"input_ids": batch["source"], "decoder_input_ids": batch["target"]}
            return kept | {"labels": batch["labels"]} if labels else kept
        if not labels:
            return {"input_ids": words}
        if kind.endswith(_SEES_ALL):
            return renamed(masked_word(words), "input_ids")
        return {"input_ids": words, "labels": words}

    return arrange


def _classes_of(words: Int[Tensor, "b t"], classes: int) -> Tensor:
    """A class for each word; with one "class" transformers takes a number to come near to."""
    return words % classes if classes > 1 else words.float() / words.shape[1]


def _sound(config: Any, loss: Callable[[nn.Module, Batch], Tensor]) -> Task:
    """Whisper's log-mel frames, two for each position of its encoder, and words to write."""
    words = min(LONGEST, int(config.max_target_positions))

    def arrange(inputs: Tensor, labels: Tensor | None) -> Batch:
        assert labels is not None
        # One class a sample is stretched to a text: word t of it is class + t.
        text = (labels[:, None] + torch.arange(words + 1)) % int(config.vocab_size)
        batch = {"input_features": inputs, "decoder_input_ids": text[:, :-1]}
        return batch | {"labels": text[:, 1:].contiguous()} if loss is _own_loss else batch

    return Task(
        signal="numbers",
        shape=(int(config.num_mel_bins), 2 * int(config.max_source_positions)),
        classes=int(config.vocab_size),
        arrange=arrange,
        loss=loss,
    )


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that a model of transformers computes from ``labels``."""
    loss = model(**batch).loss
    if not isinstance(loss, Tensor):
        raise ModelError(
            f"a {type(model).__name__} without a loss for its labels",
            expected="one",
            do="give inputs= and loss= in Python",
        )
    return loss


def _to_random_targets(model: nn.Module, batch: Batch) -> Tensor:
    """Squared distance of a headless model's output from fixed normal numbers."""
    output = outputs_of(forward(model, batch))
    generator = generator_for(0, "targets")
    targets = torch.randn(output.shape, generator=generator).to(output)
    return functional.mse_loss(output, targets)


def _takes_labels(model: nn.Module) -> bool:
    taken = inspect.signature(model.forward).parameters
    # BERT's pretraining wants the order of two sentences beside the words.
    return "labels" in taken and "next_sentence_label" not in taken
