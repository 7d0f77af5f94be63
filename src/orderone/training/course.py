"""A training run: the loop, with records, evaluation, checkpoints and resuming."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from orderone.core.errors import RunError, TornRecordWarning
from orderone.core.record import Record, RecordWriter
from orderone.core.reductions import norm
from orderone.core.run import RunFolder
from orderone.training import checkpoint, loop
from orderone.training.checkpoint import Best, Trained
from orderone.training.config import TrainingConfig
from orderone.training.distributed import ALONE, Ranks
from orderone.training.loop import Loss, Manner, Observer, Positioned, StepTaken
from orderone.training.optimizers import optimizer
from orderone.training.progress import Bar
from orderone.training.resume import Resumed, resume
from orderone.training.schedules import Schedule, multiplier
from orderone.training.tensors import model_tensors

_DRAIN_ON_DEVICE = 16
"""Steps whose numbers are fetched together from an accelerator, which need not wait for us."""

Evaluate = Callable[[], float | Mapping[str, float]]
"""The loss, or ``loss`` with other quantities that are recorded beside it."""


@runtime_checkable
class Batches(Positioned, Protocol):
    """An iterator of batches that knows its position."""

    def __iter__(self) -> Any: ...
    def __next__(self) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What observers that are made for a run may attach to."""

    model: nn.Module
    optimizer: Optimizer
    records: RecordWriter | None
    """None on ranks that do not write, and in runs without a folder."""
    ranks: Ranks
    first: int
    """Steps taken before; above 0 in a resumed run."""


Attach = Callable[[Setting], Iterable[Observer]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to; of this process's time where it was resumed."""

    steps: int
    resumed_from: int
    loss: float | None
    """Training loss of the last step taken here; None when there was none left to take."""
    validation: float | None
    best_step: int | None
    best_validation: float | None
    tokens: int
    tokens_per_second: float
    damaged: tuple[str, ...] = field(default=())


def train(
    model: nn.Module,
    groups: Iterable[Mapping[str, Any]],
    batches: Batches,
    *,
    loss: Loss[Any],
    config: TrainingConfig,
    observers: Iterable[Observer] = (),
    attach: Attach | None = None,
    evaluate: Evaluate | None = None,
    run: RunFolder | None = None,
    resumes: bool = False,
    ranks: Ranks = ALONE,
    quiet: bool = True,
) -> Outcome:
    """Trains ``model`` by ``config``; with ``run``, its records and checkpoints go there.

    ``attach`` makes observers once the optimizer is there and a resumed run's state is back.
    ``resumes`` goes on from the run's newest checkpoint. On many ranks every rank calls this, with
    the same observers, and the leading one writes.
    """
    made = optimizer(groups, config.optimizer)
    chosen = config.schedule
    factor = multiplier(
        chosen.kind,
        steps=chosen.length or config.steps,
        warmup=chosen.warmup,
        floor=chosen.floor,
    )
    schedule = Schedule(made, factor)
    scaler = GradScaler(ranks.device.type) if config.precision == "float16" else None
    trained = Trained(model=model, optimizer=made, batches=batches, scaler=scaler, ranks=ranks)
    manner = Manner(
        accumulate=config.accumulated(ranks.world),
        clip=config.clip,
        gradient_norm=True,
        precision=config.precision,
        scaler=scaler,
        ranks=ranks,
    )
    bar = Bar(config.steps, quiet=quiet or not ranks.leads)
    with _deterministic(config.deterministic), _records(run, ranks) as records, bar:
        start = Resumed()
        if resumes and run is not None:
            start = resume(run.checkpoints, trained, records, keep=config.keep)
        course = _Course(trained, config, records, evaluate, run, start, bar)
        setting = Setting(
            model=model, optimizer=made, records=records, ranks=ranks, first=start.step
        )
        watching = [*observers, *(attach(setting) if attach else ()), course.observe]
        course.begin()
        last = loop.train(
            model,
            made,
            batches,
            loss=loss,
            observers=watching,
            steps=config.steps,
            first=start.step,
            schedule=schedule,
            manner=manner,
        )
        return course.end(last)


class LostNumbersError(RunError):
    """The loss, the gradient or the weights are no numbers any more."""


class _Course:
    """What happens between steps, in an order that a resumed run repeats."""

    def __init__(
        self,
        trained: Trained,
        config: TrainingConfig,
        records: RecordWriter | None,
        evaluate: Evaluate | None,
        run: RunFolder | None,
        start: Resumed,
        bar: Bar,
    ) -> None:
        self._trained, self._config, self._records = trained, config, records
        self._evaluate, self._start, self._bar = evaluate, start, bar
        self._folder: Path | None = None if run is None else run.checkpoints
        self._best = start.best
        self._evaluated: tuple[int, float] | None = None
        self._saved = start.step
        self._loss: float | None = None
        self._pending: list[StepTaken] = []
        on_cpu = trained.ranks.device.type == "cpu"
        self._drain_every = 1 if on_cpu else _DRAIN_ON_DEVICE

    def begin(self) -> None:
        """The evaluation before the first step."""
        if self._start.step == 0:
            self._validate(0)
        self._bar.begin(self._start.step)

    def observe(self, event: StepTaken) -> None:
        self._pending.append(event)
        self._bar.count(event.tokens)
        # Both at the last step too, and in this order: a checkpoint's records come before it.
        ends = event.step == self._config.steps
        validates = ends or _due(event.step, self._config.evaluate_every)
        saves = ends or _due(event.step, self._config.checkpoint_every)
        if validates or saves or _due(event.step, self._drain_every):
            self._drain()
        if validates:
            self._validate(event.step)
        if saves:
            self._save(event.step)

    def end(self, last: int) -> Outcome:
        """Evaluation and checkpoint of a run that ended before its last step."""
        self._drain()
        if last > self._saved and last < self._config.steps:
            if self._evaluated is None or self._evaluated[0] != last:
                self._validate(last)
            self._save(last)
        if self._evaluated is None and self._evaluate is not None:
            self._evaluated = (last, _numbers(self._evaluate())["loss"])  # recorded already
        return Outcome(
            steps=last,
            resumed_from=self._start.step,
            loss=self._loss,
            validation=None if self._evaluated is None else self._evaluated[1],
            best_step=None if self._best is None else self._best.step,
            best_validation=None if self._best is None else self._best.loss,
            tokens=self._bar.tokens,
            tokens_per_second=round(self._bar.tokens_per_second, 1),
            damaged=self._start.damaged,
        )

    def _drain(self) -> None:
        """Records of the steps since the last time, and the end of a run that lost its numbers."""
        events, self._pending = self._pending, []
        for event in events:
            self._loss = event.loss.item()
            size = None if event.gradient_norm is None else event.gradient_norm.item()
            self._record(event.step, "loss", self._loss, split="train")
            if size is not None:
                self._record(event.step, "gradient_norm_before_clipping", size)
            lr = self._config.optimizer.lr * event.multiplier
            self._record(event.step, "lr", lr)
            self._require_finite(event.step, "loss", self._loss)
            # A step whose scaled gradients overflowed is skipped, and no harm.
            if size is not None and self._trained.scaler is None:
                self._require_finite(event.step, "gradient's norm", size)
        if events and self._loss is not None:
            self._bar.show(events[-1].step, self._loss)

    def _validate(self, step: int) -> None:
        if self._evaluate is None:
            return
        numbers = _numbers(self._evaluate())
        loss = numbers["loss"]
        self._evaluated = (step, loss)
        for name, value in numbers.items():
            self._record(step, name, value, split="validation")
        if step > 0 and (self._best is None or loss < self._best.loss):
            self._best = Best(step=step, loss=loss)
            if self._folder is not None:
                checkpoint.save_best(self._folder, self._best, self._trained)

    def _save(self, step: int) -> None:
        if self._folder is None:
            return
        # Weights can overflow in a step whose loss and gradient did not.
        weights = model_tensors(self._trained.model)
        floating = {name: each for name, each in weights.items() if each.is_floating_point()}
        self._require_finite(step, "weights' norm", norm(floating).item())
        if self._records is not None:
            # Before the checkpoint: what it says was recorded must be on the disk.
            self._records.flush(fsync=True)
        checkpoint.save(self._folder, step, self._trained, best=self._best)
        self._saved = step
        if self._trained.ranks.leads:
            checkpoint.prune(self._folder, keep=self._config.keep, step=step, best=self._best)

    def _record(self, step: int, name: str, value: float, **labels: str) -> None:
        if self._records is not None:
            self._records.write(Record(step, name, value, labels))

    def _require_finite(self, step: int, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        kept = f"the checkpoint of step {self._saved} stays" if self._saved else "none was kept yet"
        raise LostNumbersError(
            f"the {what} is {value} at step {step}",
            expected=f"a finite number ({kept})",
            do="lower the learning rate, lengthen the warm-up or clip the gradient",
        )


def _numbers(found: float | Mapping[str, float]) -> Mapping[str, float]:
    return found if isinstance(found, Mapping) else {"loss": found}


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextmanager
def _records(run: RunFolder | None, ranks: Ranks) -> Generator[RecordWriter | None]:
    if run is None or not ranks.leads:
        yield None
        return
    with warnings.catch_warnings():
        # A killed run may leave a torn line: it is of a step that is taken again.
        warnings.simplefilter("ignore", TornRecordWarning)
        writer = run.writer()
    with writer:
        yield writer


@contextmanager
def _deterministic(on: bool) -> Generator[None]:
    """torch's deterministic algorithms inside, and what there was before after."""
    if not on:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
