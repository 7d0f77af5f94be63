"""What a model is fed and how its loss is computed, told from the model itself.

Ours by their configuration's kind, transformers' by their main input, timm's by their input size,
anything else by the module that it begins with. The content, random or real, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ModelError
from orderone.core.generators import generator_for
from orderone.core.outputs import main_tensor
from orderone.core.targets import IGNORED

Batch = Mapping[str, Tensor]
"""A model's keyword arguments, and ``labels`` where the loss is ours to compute."""

LONGEST = 64
"""Tokens of a text: enough for attention to have something to choose from."""

EXAMPLE_LONGEST = 16
"""Tokens of an example's text: a check compares widths, not what there is to learn."""

MASKED_SHARE = 0.15
_SEES_ALL = ("MaskedLM", "WithLMHeadModel", "XLNetLMHeadModel")
"""Classes whose labels are not shifted: every word sees every word, itself too unless hidden."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model's inputs and loss."""

    signal: Literal["words", "pixels", "numbers"]
    shape: tuple[int, ...]
    """Of one input: (tokens,), (channels, height, width), ..."""
    classes: int
    """Words of the vocabulary, or classes."""
    arrange: Callable[[Tensor, Tensor | None], Batch]
    """Inputs and labels as the model takes them; of words the labels are None."""
    loss: Callable[[nn.Module, Batch], Tensor]
    pad: int | None = None
    """A word that no text holds, and whose embedding may be zero."""

    def example(self, batch: int, seed: int) -> Batch:
        """A random batch, the same at every width: it depends on nothing but its shape and seed."""
        generator = generator_for(seed, "example")
        if self.signal == "words":
            return self.arrange(self._words(batch, generator), None)
        inputs = torch.randn(batch, *self.shape, generator=generator)
        return self.arrange(inputs, torch.randint(self.classes, (batch,), generator=generator))

    def _words(self, batch: int, generator: torch.Generator) -> Tensor:
        words, length = self.classes - (self.pad is not None), min(EXAMPLE_LONGEST, self.shape[0])
        drawn = torch.randint(words, (batch, length), generator=generator)
        return drawn if self.pad is None else drawn + (drawn >= self.pad)


def task(model: nn.Module) -> Task:
    """The task that a model's class and configuration tell; ModelError when they do not."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "kind"):
        return _ours(config)
    if hasattr(config, "model_type"):
        return _transformers(model, config)
    if hasattr(model, "pretrained_cfg") and hasattr(model, "num_classes"):
        channels_and_size = tuple(int(size) for size in _timm_size(model))
        return _pixels(channels_and_size, int(_number(model, "num_classes")), name=None)
    return _by_first_module(model)


def outputs_of(output: Any) -> Tensor:
    """The tensor of a model's output that is its answer."""
    found = main_tensor(output)
    if found is None:
        raise ModelError(
            f"a model whose output is a {type(output).__name__} without a tensor",
            expected="a tensor, or a tuple or mapping with one",
            do="give loss=, a function of the model and a batch",
        )
    return found


def _ours(config: Any) -> Task:
    if config.kind == "vision":
        shape = (config.channels, config.image_size, config.image_size)
        return _pixels(shape, config.n_out, name=None)
    if config.kind == "encoder-decoder":
        return Task(
            signal="words",
            shape=(min(LONGEST, config.T) + 1,),
            classes=config.n_vocab,
            arrange=_source_and_target,
            loss=_cross_entropy,
            pad=config.pad,
        )
    arrange = _next_word if config.causal else _masked_word
    return Task(
        signal="words",
        shape=(min(LONGEST, config.T) + int(config.causal),),
        classes=min(config.n_vocab, config.outputs),
        arrange=lambda words, _: _renamed(arrange(words), "tokens"),
        loss=_cross_entropy,
        pad=config.pad,
    )


def _transformers(model: nn.Module, config: Any) -> Task:
    name = str(getattr(model, "main_input_name", "input_ids"))
    loss = _own_loss if _takes_labels(model) else _to_random_targets
    if name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        classes = getattr(config, "num_labels", 1)
        shape = (config.num_channels, height, width)
        return _pixels(shape, classes, name=name, loss=loss, labels=loss is _own_loss)
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
    def arrange(words: Tensor, _: Tensor | None) -> Batch:
        if getattr(config, "is_encoder_decoder", False):
            batch = _source_and_target(words)
            kept = {"input_ids": batch["source"], "decoder_input_ids": batch["target"]}
            return kept | {"labels": batch["labels"]} if labels else kept
        if not labels:
            return {"input_ids": words}
        if type(model).__name__.endswith(_SEES_ALL):
            return _renamed(_masked_word(words), "input_ids")
        return {"input_ids": words, "labels": words}

    return arrange


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


def _by_first_module(model: nn.Module) -> Task:
    """A model of no known house: fed with what its first module takes."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return Task(
                signal="words",
                shape=(LONGEST + 1,),
                classes=module.num_embeddings,
                arrange=lambda words, _: _next_word(words),
                loss=_cross_entropy,
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
        arrange=lambda inputs, labels: _labelled(inputs, labels, None),
        loss=_cross_entropy,
    )


def _pixels(
    shape: tuple[int, ...],
    classes: int,
    *,
    name: str | None,
    loss: Callable[[nn.Module, Batch], Tensor] | None = None,
    labels: bool = True,
) -> Task:
    def arrange(inputs: Tensor, given: Tensor | None) -> Batch:
        return _labelled(inputs, given if labels else None, name)

    return Task(
        signal="pixels",
        shape=shape,
        classes=classes,
        arrange=arrange,
        loss=_cross_entropy if loss is None else loss,
    )


POSITIONAL = "inputs"
"""Name of an input that is passed by its place."""


def _labelled(inputs: Tensor, labels: Tensor | None, name: str | None) -> Batch:
    batch = {name or POSITIONAL: inputs}
    return batch if labels is None else batch | {"labels": labels}


def _renamed(batch: Batch, name: str) -> Batch:
    return {name if key == POSITIONAL else key: value for key, value in batch.items()}


def _next_word(words: Int[Tensor, "b t"]) -> Batch:
    return {POSITIONAL: words[:, :-1], "labels": words[:, 1:]}


def _source_and_target(words: Int[Tensor, "b t"], _: Tensor | None = None) -> Batch:
    """A text's second half from its first."""
    half = words.shape[1] // 2
    return {
        "source": words[:, :half],
        "target": words[:, half:-1],
        "labels": words[:, half + 1 :].contiguous(),  # transformers takes views of it
    }


def _masked_word(words: Int[Tensor, "b t"]) -> Batch:
    """15 % of the words, evenly spaced, replaced by word 0 and to be found again."""
    hidden = torch.zeros_like(words, dtype=torch.bool)
    hidden[:, :: round(1 / MASKED_SHARE)] = True
    return {
        POSITIONAL: words.masked_fill(hidden, 0),
        "labels": words.masked_fill(~hidden, IGNORED),
    }


def forward(model: nn.Module, batch: Batch) -> Any:
    """The model's output on a batch whose labels are not its own to see."""
    named = {name: value for name, value in batch.items() if name not in (POSITIONAL, "labels")}
    if POSITIONAL in batch:
        return model(batch[POSITIONAL], **named)
    return model(**named)


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats; labels of a sample count for each of its tokens."""
    logits, labels = outputs_of(forward(model, batch)), batch["labels"]
    if logits.ndim == 3 and labels.ndim == 1:
        labels = labels[:, None].expand(-1, logits.shape[1])
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED
    )


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that a model of transformers computes from ``labels``."""
    loss = model(**batch).loss
    assert isinstance(loss, Tensor)
    return loss


def _to_random_targets(model: nn.Module, batch: Batch) -> Tensor:
    """Squared distance of a headless model's output from fixed normal numbers."""
    output = outputs_of(forward(model, batch))
    generator = generator_for(0, "targets")
    targets = torch.randn(output.shape, generator=generator).to(output)
    return functional.mse_loss(output, targets)


def _takes_labels(model: nn.Module) -> bool:
    import inspect

    return "labels" in inspect.signature(model.forward).parameters


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
