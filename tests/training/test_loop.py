"""The loop takes the steps that a hand-written one takes, and stops when told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from orderone.core.targets import IGNORED
from orderone.training.loop import StepTaken, train
from orderone.training.losses import mean_loss, next_word_loss


@dataclass(frozen=True)
class Words:
    tokens: Tensor
    targets: Tensor
    real: Tensor


class Bigram(nn.Module):
    """Logits of the next word from the present one alone."""

    def __init__(self, words: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(words, words)

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        return self.table(tokens)


def words(count: int, *, length: int = 4, padding: int = 0) -> list[Words]:
    made = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(5, (2, length), generator=generator)
        targets = torch.randint(5, (2, length), generator=generator)
        real = torch.ones(2, length, dtype=torch.bool)
        if padding:
            real[:, -padding:] = False
            targets[:, -padding:] = IGNORED
        made.append(Words(tokens, targets, real))
    return made


def test_steps_are_those_of_a_bare_loop() -> None:
    torch.manual_seed(0)
    model, bare = Bigram(), Bigram()
    bare.load_state_dict(model.state_dict())
    losses: list[float] = []
    taken = train(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.1),
        words(4),
        loss=next_word_loss,
        observers=[lambda event: losses.append(event.loss.item())],
    )
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.1)
    expected = []
    for batch in words(4):
        optimizer.zero_grad()
        logits = bare(batch.tokens).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch.targets.flatten())
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert taken == 4
    assert losses == expected
    assert torch.equal(model.table.weight, bare.table.weight)


def test_every_observer_hears_the_step_that_one_ends() -> None:
    model = Bigram()
    heard: list[int] = []

    def stop_at_two(event: StepTaken) -> bool:
        return event.step < 2

    observers = [stop_at_two, lambda event: heard.append(event.step)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, optimizer, words(5), loss=next_word_loss, observers=observers) == 2
    assert heard == [1, 2]


def test_steps_bound_the_run() -> None:
    model = Bigram()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, optimizer, words(5), loss=next_word_loss, steps=3) == 3


def test_mean_loss_weighs_words_not_batches() -> None:
    model = Bigram()
    batches = words(1, length=6) + words(1, length=6, padding=4)
    logits = torch.cat([model(b.tokens)[b.real] for b in batches])
    targets = torch.cat([b.targets[b.real] for b in batches])
    expected = nn.functional.cross_entropy(logits, targets).item()
    assert mean_loss(model, batches) == pytest.approx(expected, rel=1e-6)
    assert model.training
