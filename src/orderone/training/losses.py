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


def next_word_loss(model: nn.Module, batch: WordBatch) -> Tensor:
    """Mean cross-entropy in nats per predicted word, [MRGSS21] App. A."""
    everything_real = bool(batch.real.all())
    return _cross_entropy(model(batch.tokens, None if everything_real else batch.real), batch)


def next_word_loss_of_transformers(model: nn.Module, batch: WordBatch) -> Tensor:
    """The same for a model of transformers."""
    return _cross_entropy(model(input_ids=batch.tokens, attention_mask=batch.real.long()), batch)


def _cross_entropy(output: Any, batch: WordBatch) -> Tensor:
    logits = main_tensor(output)
    assert logits is not None
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.targets.flatten().long(), ignore_index=IGNORED
    )


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
