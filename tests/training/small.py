"""A tiny run for the tests: a bigram-like transformer of words on words drawn from a seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from orderone.core.run import RunFolder
from orderone.data.batches import PackedStream
from orderone.training.config import TrainingConfig, checked
from orderone.training.course import Outcome, train
from orderone.training.distributed import ALONE, Ranks
from orderone.training.losses import mean_loss, next_word_loss
from orderone.training.resume import clear_unborn

WORDS, T = 11, 6


class Small(nn.Module):
    """Two maps and dropout, whose mask a resumed run must draw again; a persistent buffer too."""

    def __init__(self, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, WORDS)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        if self.training:
            self.calls += 1
        z = self.word(tokens)
        for block in self.blocks:
            z = z + self.dropout(torch.tanh(block(z)))
        return self.head(z)


def small(width: int = 8, dropout: float = 0.1) -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Small(width, dropout)


def stream(
    *, batch: int = 4, seed: int = 0, shuffle: bool = True, text: int = 5, ranks: Ranks = ALONE
) -> PackedStream:
    words = torch.randint(WORDS, (400,), generator=torch.Generator().manual_seed(text))
    return PackedStream(
        words.int().numpy(),
        T=T,
        batch_size=batch,
        seed=seed,
        shuffle=shuffle,
        epochs=None if shuffle else 1,
        rank=ranks.rank,
        world=ranks.world,
    )


def config(**changes: Any) -> TrainingConfig:
    settings: dict[str, Any] = {
        "steps": 24,
        "batch_size": 4,
        "clip": 0.5,
        "evaluate_every": 4,
        "checkpoint_every": 3,
        "optimizer": {"lr": 0.05, "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup": 4},
    }
    return checked(TrainingConfig, {**settings, **changes})


def trained(
    path: Path,
    chosen: TrainingConfig,
    *,
    model: nn.Module | None = None,
    batches: PackedStream | None = None,
    ranks: Ranks = ALONE,
    **more: Any,
) -> Outcome:
    """A run in ``path``, resumed where one is there."""
    resumes = (path / "run.json").exists()
    if not resumes:
        clear_unborn(path)
    settings = chosen.model_dump(mode="json")
    run = (
        RunFolder.open(path)
        if resumes
        else RunFolder.create(path, command="train", config=settings, seed=0)
    )
    torch.manual_seed(7)
    random.seed(7)  # Python seeds it anew in every fork
    np.random.seed(7)
    model = small() if model is None else model
    held_out = list(stream(shuffle=False))[:3]
    return train(
        model,
        [{"params": list(model.parameters())}],
        stream(batch=chosen.part) if batches is None else batches,
        loss=next_word_loss,
        config=chosen,
        evaluate=lambda: mean_loss(model, held_out),
        run=run,
        resumes=resumes,
        ranks=ranks,
        **more,
    )
