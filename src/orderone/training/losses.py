"""Losses of a model on a batch: what training minimises and evaluation averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.outputs import main_tensor
from orderone.core.targets import IGNORED
from orderone.training.config import Precision
from orderone.training.distributed import ALONE, Ranks
from orderone.training.loop import autocast, words_of


@runtime_checkable
class WordBatch(Protocol):
    """Tokens, the words to predict at each, and which tokens are real rather than padding."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def real(self) -> Tensor: ...


@runtime_checkable
class SpanBatch(Protocol):
    """Corrupted source, what the decoder reads, and what it should say; real is not padding."""

    @property
    def source(self) -> Tensor: ...
    @property
    def source_real(self) -> Tensor: ...
    @property
    def target_in(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def target_real(self) -> Tensor: ...


@runtime_checkable
class PictureBatch(Protocol):
    """Images, and class numbers or probabilities."""

    @property
    def images(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...


@runtime_checkable
class Targeted(Protocol):
    """A batch with words to predict."""

    @property
    def targets(self) -> Tensor: ...


def next_word_loss(model: nn.Module, batch: WordBatch) -> Tensor:
    """Mean cross-entropy in nats per predicted word, [MRGSS21] App. A."""
    everything_real = bool(batch.real.all())
    return _cross_entropy(model(batch.tokens, None if everything_real else batch.real), batch)


def next_word_loss_of_transformers(model: nn.Module, batch: WordBatch) -> Tensor:
    """The same for a model of transformers."""
    return _cross_entropy(model(input_ids=batch.tokens, attention_mask=batch.real.long()), batch)


def _cross_entropy(output: Any, batch: Targeted) -> Tensor:
    logits = main_tensor(output)
    assert logits is not None
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.targets.flatten().long(), ignore_index=IGNORED
    )


def restored_loss(model: nn.Module, batch: SpanBatch) -> Tensor:
    """Mean cross-entropy in nats per word of the original, [pad] left out; [DYZ23] §II.2.A."""
    masks = [None if bool(real.all()) else real for real in (batch.source_real, batch.target_real)]
    return _cross_entropy(model(batch.source, batch.target_in, *masks), batch)


def class_loss(model: nn.Module, batch: PictureBatch) -> Tensor:
    """Mean cross-entropy in nats per image; targets are classes or their probabilities."""
    return functional.cross_entropy(_logits(model, batch), batch.targets)


def _logits(model: nn.Module, batch: PictureBatch) -> Tensor:
    logits = main_tensor(model(batch.images))
    assert logits is not None
    return logits.float()


@torch.no_grad()
def mean_loss(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Callable[[nn.Module, Any], Tensor] = next_word_loss,
    precision: Precision = "float32",
    ranks: Ranks = ALONE,
) -> float:
    """``loss`` over the batches of all ranks, each weighted by the words that it predicts."""
    training = model.training
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for batch in batches:
        words = words_of(batch).cpu()
        with autocast(precision, ranks.device):
            value = loss(model, batch)
        totals += torch.stack([words * value.cpu(), words])
    model.train(training)
    total, words = ranks.total(totals).tolist()
    return total / words


@torch.no_grad()
def class_scores(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    precision: Precision = "float32",
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Mean ``loss`` in nats and top-one ``accuracy`` over the images of all ranks.

    Targets are class numbers, as in a validation set.
    """
    training = model.training
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64)
    for batch in batches:
        with autocast(precision, ranks.device):
            logits = _logits(model, batch)
        loss = functional.cross_entropy(logits, batch.targets, reduction="sum")
        right = (logits.argmax(1) == batch.targets).sum()
        count = torch.tensor(float(len(logits)))
        totals += torch.stack([each.double().cpu() for each in (loss, right, count)])
    model.train(training)
    loss, right, count = ranks.total(totals).tolist()
    return {"loss": loss / count, "accuracy": right / count}
