"""The small language models of [MRGSS21] §3, App. A: trained once a run folder, then read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.torch import load_file

from orderone.core.record import read_records
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_text import SmallText
from orderone.experiments.small_training import SUMMARY, Scores, SmallModel, Task, train
from orderone.experiments.workers import workers
from orderone.models.build import build
from orderone.models.language import LanguageTransformer

__all__ = ["Scores", "SmallModel", "TrainedModel", "small_model", "trained", "trained_all"]


def small_model(stage: Stage, **changes: Any) -> SmallModel:
    """The size of a scale: App. A itself at *paper*; one epoch of a small one at *laptop*."""
    paper = SmallModel(placement="branch")
    if changes.get("corpus") == "wikitext-2":
        paper = replace(paper, T=700)
    laptop = replace(paper, layers=4, n=128, d_ff=96, H=4, epochs=1)
    smoke = replace(
        laptop, layers=2, n=32, d_ff=32, H=2, sentences=800, vocabulary=500, checkpoints=20
    )
    return replace(stage.pick(smoke=smoke, laptop=laptop, paper=paper), **changes)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """What a training left, read back from its folder."""

    chosen: SmallModel
    text: SmallText
    model: LanguageTransformer
    """At the epoch of the lowest development loss."""
    initial: LanguageTransformer
    folder: Path
    steps: int
    best_step: int
    losses: dict[int, float]
    """On development sentences, in nats a word, by step; 0 is before training."""
    test: Scores
    watched: pl.DataFrame
    """step, name, value of the encoder: norm, step_norm, alignment, …; and norm_of_everything."""

    @property
    def series(self) -> Path:
        """Checkpoints of the encoder, for ``trajectory``."""
        return self.folder / "series"

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of a watched number."""
        frame = self.watched.filter(pl.col("name") == name).sort("step")
        return frame["step"].to_numpy(), frame["value"].to_numpy()


def trained(stage: Stage, chosen: SmallModel) -> TrainedModel:
    """The model trained in the stage's run folder; read back where that was done before."""
    return trained_all(stage, [chosen])[0]


def trained_all(stage: Stage, models: Sequence[SmallModel]) -> list[TrainedModel]:
    """Several, side by side in the stage's processes."""
    tasks = [
        Task(
            chosen=each,
            folder=stage.run.path / "models" / each.name.replace(" ", "-"),
            device=str(stage.device),
            data=stage.data,
            seed=stage.seed,
        )
        for each in models
    ]
    fresh = [task for task in tasks if not (task.folder / SUMMARY).exists()]
    if stage.processes > 1 and len(fresh) > 1:
        _side_by_side(stage, fresh)
    else:
        for done, task in enumerate(fresh):
            train(task, partial(_told, stage, done, len(fresh)))
    return [_read(task) for task in tasks]


def _side_by_side(stage: Stage, tasks: Sequence[Task]) -> None:
    with workers(train, processes=stage.processes) as spread:
        for done, _ in enumerate(spread(tasks), start=1):
            stage.progress(done, len(tasks))


def _told(stage: Stage, before: int, of: int, done: int, steps: int) -> None:
    stage.progress(before * steps + done, of * steps)


def _read(task: Task) -> TrainedModel:
    chosen = task.chosen
    told = json.loads((task.folder / SUMMARY).read_text(encoding="utf-8"))
    text = chosen.text(task.data)
    test = load_file(task.folder / "test.safetensors")
    return TrainedModel(
        chosen=chosen,
        text=text,
        model=_model(task, text, "best.safetensors"),
        initial=_model(task, text, "initial.safetensors"),
        folder=task.folder,
        steps=told["steps"],
        best_step=told["best_step"],
        losses={int(step): loss for step, loss in told["losses"].items()},
        test=Scores(nats=test["nats"], words=test["words"], right=told["right"]),
        watched=read_records(task.folder / "records.jsonl").select("step", "name", "value"),
    )


def _model(task: Task, text: SmallText, file: str) -> LanguageTransformer:
    model = build(task.chosen.config(len(text.vocabulary)), seed=task.seed).to(task.device)
    assert isinstance(model, LanguageTransformer)
    model.load_state_dict(load_file(task.folder / file, device=task.device))
    return model.eval()
