"""One training run of a sweep over widths and learning rates."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError
from orderone.data.batches import PackedStream
from orderone.experiments.workers import Engine, workers
from orderone.scaling.plan import plan
from orderone.scaling.tasks import Batch, Task, task
from orderone.training.loop import StepTaken, train

Make = Callable[[int], nn.Module]

WARM_UP = 0.1
"""Share of the steps in which the learning rate rises; it then falls linearly to 0."""

VALIDATION_BATCHES = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """What is learned: the tokens of a text, or images with their labels."""

    training: tuple[Any, ...] = field(repr=False)
    """(tokens,) or (images, labels)."""
    validation: tuple[Any, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One width, one learning rate, one seed."""

    make: Make = field(repr=False)
    material: Material = field(repr=False)
    width: int
    lr: float
    seed: int
    strategy: str | None
    s: float | None
    weight_decay: float
    steps: int
    batch: int


def trained_loss(trial: Trial) -> float:
    """Validation loss in nats after training; infinite where training diverged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = trial.make(trial.width)
        made = plan(model, trial.strategy, s=trial.s)
        made.initialize_(seed=trial.seed)
        groups = made.param_groups(trial.lr, trial.weight_decay)
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
        found = task(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _triangle(trial.steps))

        def observe(event: StepTaken) -> bool:
            schedule.step()
            return math.isfinite(event.loss.item())

        content = batches(found, trial.material.training, trial.batch, seed=trial.seed)
        train(model, optimizer, content, loss=found.loss, observers=[observe], steps=trial.steps)
        return _validation_loss(model, found, trial)


@torch.no_grad()
def _validation_loss(model: nn.Module, found: Task, trial: Trial) -> float:
    model.eval()
    content = batches(found, trial.material.validation, trial.batch, seed=0)
    held_out = [batch for batch, _ in zip(content, range(VALIDATION_BATCHES), strict=False)]
    loss = sum(found.loss(model, batch).item() for batch in held_out) / len(held_out)
    return loss if math.isfinite(loss) else math.inf


def batches(found: Task, content: Sequence[Any], size: int, *, seed: int) -> Iterator[Batch]:
    """Batches without end, the same for every width and learning rate."""
    if found.signal == "words":
        (tokens,) = content
        for batch in PackedStream(tokens, T=found.shape[0] - 1, batch_size=size, seed=seed):
            yield found.arrange(torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1), None)
    images, labels = content
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(labels), (size,), generator=generator)
        yield found.arrange(fitted(images[chosen], found.shape), labels[chosen])


def fitted(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images at a model's size and number of channels."""
    channels, height, width = shape
    if images.shape[-2:] != (height, width):
        images = torch.nn.functional.interpolate(images, size=(height, width), mode="bilinear")
    return images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images[:, :channels]


def run_trials(
    trials: Sequence[Trial], *, engine: Engine, processes: int
) -> Iterator[tuple[int, float]]:
    """(index, loss) of every trial, in the order in which they end."""
    if engine == "local" and processes > 1:
        _require_portable(trials[0])
    with workers(trained_loss, engine=engine, processes=processes) as run:
        yield from run(trials)


def _require_portable(trial: Trial) -> None:
    try:
        pickle.dumps(trial)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"a model factory that no other process can import ({error})",
            expected="a function at the top level of a module, for more than one process",
            do="define it there, or use one process",
        ) from error


def _triangle(steps: int) -> Callable[[int], float]:
    rise = max(1, math.ceil(WARM_UP * steps))
    return lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise), 1.0)


def text_material(train_lines: Sequence[str], held_out: Sequence[str], words: int) -> Material:
    """Byte pairs of a text, with at most ``words`` of them."""
    from orderone.data.bpe import SMALLEST, BytePairs

    if words < SMALLEST:
        raise ConfigError(
            f"a vocabulary of {words} for real text",
            expected=f"at least {SMALLEST} words",
            do="enlarge the model's vocabulary",
        )
    pairs = BytePairs.train(train_lines, size=min(words, 4096))
    training, validation = (pairs.encode_many(lines).tokens for lines in (train_lines, held_out))
    return Material(training=(np.asarray(training),), validation=(np.asarray(validation),))


def digits_material(classes: int) -> Material:
    """scikit-learn's digits, normalised."""
    from orderone.data.images import images

    digits = images("digits")
    if classes < len(digits.classes):
        raise ConfigError(
            f"a head of {classes} classes for {len(digits.classes)} digits",
            expected="at least 10 classes",
            do="enlarge the head",
        )
    mean, std = digits.mean[0], digits.std[0]
    parts = (digits.train, digits.validation)
    training, validation = (
        ((part.take(torch.arange(len(part))) - mean) / std, part.labels) for part in parts
    )
    return Material(training=training, validation=validation)
