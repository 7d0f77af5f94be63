"""The small language models of [MRGSS21] §3, App. A: trained once, then read back.

They lie beside the run folders, in small-models/: experiments that ask for the same model share
it. Its folder's name ends in a digest of all that decides what comes out, the code included.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file

import orderone
from orderone.core.record import read_records
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_text import SmallText
from orderone.experiments.small_training import (
    SUMMARY,
    Scores,
    SmallModel,
    Task,
    quiet,
    train,
)
from orderone.experiments.workers import workers
from orderone.models.build import build
from orderone.models.language import LanguageTransformer

FOLDER = "small-models"
SENTENCES = {"penn": 42_068, "wikitext-2": 23_767}
"""To train on; lines that are not blank."""
WORDS = {"penn": 10_002, "wikitext-2": 33_279}
"""Of the training sentences, the end of a sentence and padding included."""
_ROOMS = ("core", "data", "models", "probes", "training")
_FILES = ("experiments/small_text.py", "experiments/small_training.py")

__all__ = [
    "Scores",
    "SmallModel",
    "TrainedModel",
    "dry_run",
    "paper_model",
    "small_model",
    "trained",
    "trained_all",
]


def paper_model(**changes: Any) -> SmallModel:
    """App. A's."""
    longest = 700 if changes.get("corpus") == "wikitext-2" else 83
    return replace(SmallModel(placement="branch", T=longest), **changes)


def small_model(stage: Stage, **changes: Any) -> SmallModel:
    """The size of a scale: App. A itself at *paper*; one epoch of a small one at *laptop*."""
    paper = paper_model(**changes)
    laptop = replace(paper, layers=4, n=128, d_ff=96, H=4, epochs=1)
    smoke = replace(
        laptop, layers=2, n=32, d_ff=32, H=2, sentences=800, vocabulary=500, checkpoints=20
    )
    return replace(stage.pick(smoke=smoke, laptop=laptop, paper=paper), **changes)


def dry_run(models: Sequence[SmallModel], note: str = "") -> DryRun:
    """What training those takes; ``parameters`` are of the largest."""
    each = [
        trainings(
            model.config(WORDS[model.corpus]),
            count=1,
            steps=model.steps(SENTENCES[model.corpus]),
            tokens_per_step=model.batch * model.T,
        )
        for model in models
    ]
    return DryRun(
        parameters=max(one.parameters for one in each),
        steps=sum(one.steps for one in each),
        tokens=sum(one.tokens for one in each),
        flops=sum(one.flops for one in each),
        memory_bytes=max(one.memory_bytes for one in each),
        note=note,
    )


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
    """One model; see ``trained_all``."""
    return trained_all(stage, [chosen])[0]


def trained_all(stage: Stage, models: Sequence[SmallModel]) -> list[TrainedModel]:
    """Several, trained in the stage's processes unless that was done before."""
    tasks = [task_of(stage, each) for each in models]
    for task in tasks:
        # What is wrong with the text is said here: our errors cannot be sent between processes.
        task.chosen.text(task.data)
    fresh = list({t.folder: t for t in tasks if not (t.folder / SUMMARY).exists()}.values())
    # A process takes seconds to begin: as long as a training at the smallest scale.
    if stage.processes > 1 and stage.scale != "smoke":
        _side_by_side(stage, fresh)
    else:
        for done, task in enumerate(fresh):
            _train(task, partial(_told, stage, done, len(fresh)))
    return [_read(task) for task in tasks]


def task_of(stage: Stage, chosen: SmallModel) -> Task:
    """A model's training, and where it is kept."""
    device, data = str(stage.device), None if chosen.corpus == "penn" else stage.data
    folder = f"{chosen.name.replace(' ', '-')}-{_digest(chosen, stage.seed, device, data)}"
    return Task(
        chosen=chosen,
        folder=stage.run.path.parent / FOLDER / folder,
        device=device,
        data=data,
        seed=stage.seed,
    )


def _digest(chosen: SmallModel, seed: int, device: str, data: Path | None) -> str:
    files = [] if data is None else sorted(each for each in data.rglob("*") if each.is_file())
    sizes = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    facts = [asdict(chosen), seed, device, sizes, torch.__version__, _code()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


@cache
def _code() -> str:
    """Of the files that a training runs."""
    root = Path(orderone.__path__[0])
    files = [path for room in _ROOMS for path in sorted((root / room).rglob("*.py"))]
    every = hashlib.sha256()
    for path in (*files, *(root / name for name in _FILES)):
        every.update(path.read_bytes())
    return every.hexdigest()


def _side_by_side(stage: Stage, tasks: Sequence[Task]) -> None:
    with workers(_train, processes=max(1, min(stage.processes, len(tasks)))) as spread:
        for done, _ in enumerate(spread(tasks), start=1):
            stage.progress(done, len(tasks))


def _train(task: Task, progress: Callable[[int, int], None] = quiet) -> None:
    """Into a folder of its own, which takes the task's name when all is there."""
    root = task.folder.parent
    root.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=".", dir=root))
    try:
        train(replace(task, folder=unfinished), progress)
        os.rename(unfinished, task.folder)
    except OSError:
        # Another process may have been faster: its folder has the same in it.
        if not (task.folder / SUMMARY).exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


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
