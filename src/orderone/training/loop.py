"""One loop for every experiment: batches in, steps out, observers told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from orderone.core.reductions import norm
from orderone.core.targets import IGNORED
from orderone.training.config import Precision
from orderone.training.distributed import ALONE, Ranks, gradients_kept_local
from orderone.training.schedules import Schedule

Batch = TypeVar("Batch")
Loss = Callable[[nn.Module, Batch], Tensor]

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepTaken:
    """What an observer learns of one optimizer step."""

    step: int
    """1 after the first update."""
    loss: Tensor
    """Mean loss of the step's batch before the update; detached, still on its device."""
    gradient_norm: Tensor | None = None
    """‖g‖ before clipping, float64 on its device; None where it was not measured."""
    multiplier: float = 1.0
    """The schedule's, by which every group's rate was multiplied."""
    tokens: int = 0
    """Of the step's batches on all ranks; 0 where batches have none."""


Observer = Callable[[StepTaken], bool | None]
"""Called after every step; an observer that returns False ends the run."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a step is taken from its batches."""

    accumulate: int = 1
    """Batches that are added up to one step."""
    clip: float | None = None
    gradient_norm: bool = False
    """Measure ‖g‖ also without clipping."""
    precision: Precision = "float32"
    scaler: GradScaler | None = field(default=None, compare=False)
    """Scales the loss, and skips steps whose gradients are not finite; for float16."""
    ranks: Ranks = ALONE


PLAIN = Manner()


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    *,
    loss: Loss[Batch],
    observers: Iterable[Observer] = (),
    steps: int | None = None,
    first: int = 0,
    schedule: Schedule | None = None,
    manner: Manner = PLAIN,
) -> int:
    """Number of the last step: when the batches, ``steps`` or an observer end the run.

    ``first`` steps were taken before. Batches too few for a whole step at the end take none.
    """
    observers = tuple(observers)
    source = iter(batches)
    model.train()
    taken = first
    while steps is None or taken < steps:
        parts = list(islice(source, manner.accumulate))
        if len(parts) < manner.accumulate:
            break
        multiplier = 1.0 if schedule is None else schedule.apply(taken)
        value, size = _step(model, optimizer, parts, loss, manner)
        taken += 1
        event = StepTaken(
            step=taken,
            loss=value,
            gradient_norm=size,
            multiplier=multiplier,
            tokens=manner.ranks.world * sum(map(_tokens, parts)),
        )
        # A list, not a generator: every observer hears of the step, also after one said stop.
        stop = False in [observer(event) for observer in observers]
        if manner.ranks.any(stop):
            break
    return taken


def _step(
    model: nn.Module, optimizer: Optimizer, parts: list[Any], loss: Loss[Any], manner: Manner
) -> tuple[Tensor, Tensor | None]:
    """One update; the mean loss over all parts and ranks, and ‖g‖."""
    optimizer.zero_grad(set_to_none=True)
    value = _gradients(model, parts, loss, manner)
    scaler = manner.scaler
    if scaler is not None:
        scaler.unscale_(optimizer)
    size = _clipped(optimizer, manner)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return value, size


def _gradients(model: nn.Module, parts: list[Any], loss: Loss[Any], manner: Manner) -> Tensor:
    """Gradients of the mean loss over all words of all parts on all ranks, and that mean."""
    shares = _shares(parts, manner.ranks)
    total: Tensor | None = None
    for number, (part, share) in enumerate(zip(parts, shares, strict=True), start=1):
        local = number < len(parts)
        with gradients_kept_local(model) if local else nullcontext():
            with autocast(manner.precision, manner.ranks.device):
                value = loss(model, part)
            value = value if share is None else value * share
            scaled = value if manner.scaler is None else manner.scaler.scale(value)
            scaled.backward()
        total = value.detach() if total is None else total + value.detach()
    assert total is not None
    return manner.ranks.mean(total)


def _shares(parts: list[Any], ranks: Ranks) -> list[Tensor] | list[None]:
    """What each part's mean loss counts, so that every word of the step counts the same.

    Ranks average their gradients: a share is words of the part × ranks / words of the step.
    """
    if len(parts) == 1 and ranks.world == 1:
        return [None]
    words = torch.stack([words_of(part) for part in parts]).to(ranks.device)
    everywhere = ranks.total(words.sum())
    return list((words * ranks.world / everywhere).float().unbind())


def words_of(batch: object) -> Tensor:
    """Predictions that a batch's mean loss is over; 1 for a batch that does not tell."""
    targets = getattr(batch, "targets", None)
    if isinstance(targets, Tensor):
        return (targets != IGNORED).sum().double()
    return torch.ones((), dtype=torch.float64)


def _tokens(batch: object) -> int:
    tokens = getattr(batch, "tokens", None)
    return tokens.numel() if isinstance(tokens, Tensor) else 0


def _clipped(optimizer: Optimizer, manner: Manner) -> Tensor | None:
    """‖g‖ over all parameters of the optimizer, which are then clipped to ``manner.clip``."""
    if manner.clip is None and not manner.gradient_norm:
        return None
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    gradients = {str(i): each.grad for i, each in enumerate(parameters) if each.grad is not None}
    size = norm(gradients)
    if manner.clip is not None:
        # torch multiplies by min(1, clip/(‖g‖ + 1e-6)); nothing waits for the device.
        clip_grads_with_norm_(parameters, manner.clip, size.float())
    return size


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Where matrix products are taken in ``precision``; weights stay in float32."""
    if precision == "float32":
        return nullcontext()
    # The second of torch's two stubs for it has no types.
    context = cast("Callable[..., AbstractContextManager[Any]]", torch.autocast)
    return context(device.type, dtype=_AUTOCAST[precision])


@runtime_checkable
class Positioned(Protocol):
    """Batches that know their position and can go back to it."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> None: ...
