"""A task: a model's inputs and loss, and what tasks are put together from."""

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


def pixels(
    shape: tuple[int, ...],
    classes: int,
    *,
    name: str | None,
    loss: Callable[[nn.Module, Batch], Tensor] | None = None,
    labels: bool = True,
) -> Task:
    def arrange(inputs: Tensor, given: Tensor | None) -> Batch:
        return labelled(inputs, given if labels else None, name)

    return Task(
        signal="pixels",
        shape=shape,
        classes=classes,
        arrange=arrange,
        loss=cross_entropy if loss is None else loss,
    )


POSITIONAL = "inputs"
"""Name of an input that is passed by its place."""


def labelled(inputs: Tensor, labels: Tensor | None, name: str | None) -> Batch:
    batch = {name or POSITIONAL: inputs}
    return batch if labels is None else batch | {"labels": labels}


def renamed(batch: Batch, name: str) -> Batch:
    return {name if key == POSITIONAL else key: value for key, value in batch.items()}


def next_word(words: Int[Tensor, "b t"]) -> Batch:
    return {POSITIONAL: words[:, :-1], "labels": words[:, 1:]}


def source_and_target(words: Int[Tensor, "b t"], _: Tensor | None = None) -> Batch:
    """A text's second half from its first."""
    half = words.shape[1] // 2
    return {
        "source": words[:, :half],
        "target": words[:, half:-1],
        "labels": words[:, half + 1 :].contiguous(),  # transformers takes views of it
    }


def masked_word(words: Int[Tensor, "b t"]) -> Batch:
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


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats; labels of a sample count for each of its tokens."""
    logits, labels = outputs_of(forward(model, batch)), batch["labels"]
    if logits.ndim == 3 and labels.ndim == 1:
        labels = labels[:, None].expand(-1, logits.shape[1])
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED
    )
