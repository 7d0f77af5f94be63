"""Losses of a model on a batch: what training minimises and evaluation averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.targets import IGNORED


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
    logits = model(batch.tokens, None if everything_real else batch.real)
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.targets.flatten().long(), ignore_index=IGNORED
    )


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Sequence[WordBatch]) -> float:
    """``next_word_loss`` over batches, each weighted by the words that it predicts."""
    training = model.training
    model.eval()
    words = [int((batch.targets != IGNORED).sum()) for batch in batches]
    total = sum(
        count * next_word_loss(model, batch).item()
        for count, batch in zip(words, batches, strict=True)
    )
    model.train(training)
    return total / sum(words)
