"""One loop for every experiment: batches in, steps out, observers told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True)
class StepTaken:
    """What an observer learns of one optimizer step."""

    step: int
    """1 after the first update."""
    loss: Tensor
    """Mean loss of the step's batch before the update; detached, still on its device."""


Observer = Callable[[StepTaken], bool | None]
"""Called after every step; an observer that returns False ends the run."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    *,
    loss: Callable[[nn.Module, Batch], Tensor],
    observers: Iterable[Observer] = (),
    steps: int | None = None,
) -> int:
    """Number of steps taken: until the batches, ``steps`` or an observer end the run."""
    observers = tuple(observers)
    model.train()
    taken = 0
    for batch in batches:
        if steps is not None and taken >= steps:
            break
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        taken += 1
        event = StepTaken(step=taken, loss=value.detach())
        # A list, not a generator: every observer hears of the step, also after one said stop.
        if False in [observer(event) for observer in observers]:
            break
    return taken
