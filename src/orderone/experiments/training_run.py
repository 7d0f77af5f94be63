"""A configuration carried out: models, plan and data brought to the training loop."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from orderone.core.errors import ConfigError
from orderone.core.run import RunFolder, new_run_path
from orderone.experiments.demands import Demands, Loss, Pictures
from orderone.experiments.lesson import Lesson, lesson_of
from orderone.experiments.run_config import RunConfig, model_source
from orderone.scaling.plan import plan
from orderone.training.config import differences
from orderone.training.course import Attach, Evaluate, LostNumbersError, Outcome
from orderone.training.distributed import Ranks, checkpoint_activations, distribute, launched
from orderone.training.losses import class_scores, mean_loss
from orderone.training.optimizers import optimizer, scaling_kind
from orderone.training.resume import clear_unborn, refuse_other, reopen
from orderone.training.rollback import require_possible, train


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended."""

    run: RunFolder
    outcome: Outcome
    leads: bool
    """Whether this process is the one that speaks of it."""


def train_run(
    config: RunConfig,
    *,
    to: Path | None = None,
    resumes: bool = False,
    attach: Attach | None = None,
    quiet: bool = True,
) -> Ended:
    """Carries ``config`` out in the folder ``to``; with ``resumes``, goes on where it was left."""
    with launched(config.parallel, timeout=config.timeout) as ranks:
        _seed(config.seed, ranks)
        lesson = lesson_of(config, ranks)
        model, groups, loss = _model(config, lesson.demands, ranks)
        # What these refuse leaves no folder behind.
        require_possible(config.spikes, config)
        optimizer(groups, config.optimizer)
        run, goes_on = _folder(config, to, resumes, ranks)
        if ranks.leads:
            lesson.save(run.path)
        try:
            outcome = train(
                model,
                groups,
                lesson.training,
                loss=loss,
                spikes=config.spikes,
                config=config,
                attach=attach,
                evaluate=_evaluation(model, lesson, loss, config, ranks),
                run=run,
                resumes=goes_on,
                ranks=ranks,
                quiet=quiet,
            )
        except LostNumbersError as error:
            if ranks.leads:
                run.finish("failed", {"why": error.found})
            raise
        if ranks.leads:
            run.finish("done", asdict(outcome))
        return Ended(run=run, outcome=outcome, leads=ranks.leads)


def _seed(seed: int, ranks: Ranks) -> None:
    """Generators that ranks do not share: dropout must differ between them."""
    random.seed(seed + ranks.rank)
    np.random.seed((seed + ranks.rank) % 2**32)
    torch.manual_seed(seed + ranks.rank)


def _evaluation(
    model: nn.Module, lesson: Lesson, loss: Loss, config: RunConfig, ranks: Ranks
) -> Evaluate:
    """The loss on what was held out; of images the accuracy too."""
    precision = config.precision
    if isinstance(lesson.demands, Pictures):
        return lambda: class_scores(
            model,
            (batch.to(ranks.device) for batch in lesson.validation()),
            precision=precision,
            ranks=ranks,
        )
    return lambda: mean_loss(
        model, lesson.validation(), loss=loss, precision=precision, ranks=ranks
    )


def _model(
    config: RunConfig, demands: Demands, ranks: Ranks
) -> tuple[nn.Module, list[dict[str, Any]], Loss]:
    """The model on its ranks, its groups, and its loss."""
    chosen = model_source(config.model, demands)
    model = chosen.build(device="cpu", seed=config.seed)
    demands.require_outside(model, chosen.kind)
    asked = config.plan
    made = plan(
        model,
        asked.strategy,
        s=asked.s,
        constants=asked.constants,
        base_width=asked.base_width,
        make=None if asked.base_width is None else chosen.build,
        multiplier_in_fans=asked.multiplier_in_fans,
    )
    made.initialize_(seed=config.seed)
    model.to(ranks.device)
    if config.activation_checkpointing:
        checkpoint_activations(model)
    placed = distribute(model, config.parallel, ranks)
    if config.compile:
        placed.compile()
    asked_of = config.optimizer
    groups = made.param_groups(
        asked_of.lr,
        asked_of.weight_decay,
        optimizer=scaling_kind(asked_of.name),
        model=placed,
    )
    base = demands.loss(chosen.kind)
    return placed, groups, lambda network, batch: base(network, batch.to(ranks.device))


def _folder(
    config: RunConfig, to: Path | None, resumes: bool, ranks: Ranks
) -> tuple[RunFolder, bool]:
    """The run's folder, made by the leading rank alone; and whether something is resumed."""
    settings = config.model_dump(mode="json")
    path, goes_on = "", False
    if ranks.leads:
        run, goes_on = _opened(settings, to, resumes, config.seed)
        path = str(run.path)
    return RunFolder(Path(ranks.told_text(path))), bool(ranks.told(int(goes_on)))


def _opened(
    settings: dict[str, Any], to: Path | None, resumes: bool, seed: int
) -> tuple[RunFolder, bool]:
    if resumes:
        to = to or _left(settings)
        if (to / "run.json").exists():
            run = RunFolder.open(to)
            if run.command != "train":
                raise ConfigError(
                    f"'{to}', a run of orderone {run.command}",
                    expected="a run of orderone train",
                    do="name another folder",
                )
            refuse_other(run.config, settings)
            reopen(to)
            return run, True
        clear_unborn(to)
    path = to or new_run_path(name="train")
    return RunFolder.create(path, command="train", config=settings, seed=seed), False


def _left(settings: dict[str, Any]) -> Path:
    """The newest run of this configuration under ``runs/``."""
    for path in sorted(Path("runs").glob("train-*"), reverse=True):
        if (path / "run.json").exists():
            run = RunFolder.open(path)
            if run.command == "train" and not differences(run.config, settings):
                return path
    raise ConfigError(
        "--resume, and no run of this configuration under 'runs'",
        expected="a run that was started with it",
        do="name its folder with --to",
    )
