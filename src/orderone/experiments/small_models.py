"""The small language models of [MRGSS21] §3, App. A: trained once a run folder, then read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.record import Record, RecordWriter, read_records
from orderone.core.reductions import norm
from orderone.core.selection import selected
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_text import (
    CorpusName,
    SmallBatch,
    SmallText,
    Split,
    batches,
    by_length,
    shuffled,
    small_text,
)
from orderone.experiments.workers import workers
from orderone.models.build import build
from orderone.models.config import LanguageConfig
from orderone.models.language import LanguageTransformer
from orderone.probes.watch import watch
from orderone.training import loop
from orderone.training.schedules import Kind, Schedule, multiplier

_EVALUATED = 64  # sentences that are scored together
_SUMMARY = "trained.json"
_WATCHED = ("norm", "step_norm", "alignment", "norm_if_misaligned", "norm_if_aligned")


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A model and its training; what is not said here is PyTorch's default, as in App. A."""

    placement: Literal["branch", "post"]
    mask: Literal["causal", "zero"] = "causal"
    """"zero": as coded. Future scores are multiplied by 0, and padding is a word like others."""
    corpus: CorpusName = "penn"
    layers: int = 12
    n: int = 768
    d_ff: int = 512
    H: int = 12
    T: int = 83
    batch: int = 16
    epochs: int = 5
    lr: float = 1e-3
    weight_decay: float = 1e-2
    schedule: Kind = "constant"
    sentences: int | None = None
    """To train on; None: all."""
    vocabulary: int | None = None
    """Largest, special words included; None: every word of the training sentences."""
    checkpoints: int = 40
    """Of the encoder, evenly spaced, beside the one before training."""
    watch_every: int = 1

    @property
    def name(self) -> str:
        """Of its folder and in labels of records."""
        parts = [self.corpus, self.placement]
        parts += ["as coded"] if self.mask == "zero" else []
        parts += [self.schedule] if self.schedule != "constant" else []
        parts += [f"lr {self.lr:g}"] if self.lr != 1e-3 else []
        return " ".join(parts)

    def config(self, words: int) -> LanguageConfig:
        """Of the model, for a vocabulary of so many words."""
        return LanguageConfig(
            n=self.n,
            H=self.H,
            encoders=self.layers,
            d_ff=self.d_ff,
            activation="relu",
            placement=self.placement,
            bias=True,
            affine=True,
            n_vocab=words,
            T=self.T,
            head_tied=False,
            head_bias=True,
            init_std=None,
            mask="zero" if self.mask == "zero" else "infinite",
        )

    def text(self, data: Path | None) -> SmallText:
        """Its corpus."""
        return small_text(
            self.corpus, T=self.T, sentences=self.sentences, vocabulary=self.vocabulary, data=data
        )

    def steps(self, sentences: int) -> int:
        """Of all epochs."""
        return self.epochs * math.ceil(sentences / self.batch)


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
class Scores:
    """A model on a split."""

    nats: Tensor
    """−log p of all words of each sentence."""
    words: Tensor
    right: int
    """Words that were the model's first guess."""

    @property
    def loss(self) -> float:
        """Nats a word."""
        return float(self.nats.sum() / self.words.sum())

    @property
    def perplexity(self) -> float:
        """e^loss, as [MRGSS21] App. A is written."""
        return math.exp(self.loss)

    @property
    def perplexity_as_coded(self) -> float:
        """Mean over sentences of 2^(nats a word)."""
        return float((self.nats / self.words).exp2().mean())

    @property
    def accuracy(self) -> float:
        return self.right / float(self.words.sum())


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


@dataclass(frozen=True, kw_only=True)
class _Task:
    chosen: SmallModel
    folder: Path
    device: str
    data: Path | None
    seed: int


def trained(stage: Stage, chosen: SmallModel) -> TrainedModel:
    """The model trained in the stage's run folder; read back where that was done before."""
    return trained_all(stage, [chosen])[0]


def trained_all(stage: Stage, models: Sequence[SmallModel]) -> list[TrainedModel]:
    """Several, side by side in the stage's processes."""
    tasks = [
        _Task(
            chosen=each,
            folder=stage.run.path / "models" / each.name.replace(" ", "-"),
            device=str(stage.device),
            data=stage.data,
            seed=stage.seed,
        )
        for each in models
    ]
    fresh = [task for task in tasks if not (task.folder / _SUMMARY).exists()]
    if stage.processes > 1 and len(fresh) > 1:
        _side_by_side(stage, fresh)
    else:
        for done, task in enumerate(fresh):
            _train(task, partial(_told, stage, done, len(fresh)))
    return [_read(task) for task in tasks]


def next_word(model: nn.Module, batch: SmallBatch) -> Tensor:
    """Mean nats a predicted word."""
    return functional.cross_entropy(_logits(model, batch), batch.targets)


@torch.no_grad()
def scores(model: nn.Module, split: Split, *, padded: bool, device: torch.device) -> Scores:
    """Nats of each sentence of ``split``."""
    model.eval()
    nats = torch.zeros(len(split), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    rows = by_length(split)
    for number, batch in enumerate(batches(split, rows, size=_EVALUATED, padded=padded)):
        here = batch.to(device)
        logits = _logits(model, here)
        each = functional.cross_entropy(logits, here.targets, reduction="none").double()
        nats.index_add_(0, here.places // here.tokens.shape[1] + number * _EVALUATED, each)
        right += (logits.argmax(dim=-1) == here.targets).sum()
    words = torch.from_numpy(split.lengths[rows] - 1).double()
    return Scores(nats=nats.cpu(), words=words, right=int(right))


def _logits(model: nn.Module, batch: SmallBatch) -> Tensor:
    """At the predicted places alone: of the rest, half of a batch, the head need know nothing."""
    assert isinstance(model, LanguageTransformer)
    z = model.blocks(model.stem(batch.tokens), model.context(None))
    return model.read(z.flatten(0, 1)[batch.places][None])[0]


def _side_by_side(stage: Stage, tasks: Sequence[_Task]) -> None:
    with workers(_train, processes=stage.processes) as spread:
        for done, _ in enumerate(spread(tasks), start=1):
            stage.progress(done, len(tasks))


def _told(stage: Stage, before: int, of: int, done: int, steps: int) -> None:
    stage.progress(before * steps + done, of * steps)


def _quiet(done: int, total: int) -> None:
    """Of a training in a process of its own."""


def _train(task: _Task, progress: Callable[[int, int], None] = _quiet) -> None:
    chosen, device = task.chosen, torch.device(task.device)
    text = chosen.text(task.data)
    model = build(chosen.config(len(text.vocabulary)), seed=task.seed).to(device)
    assert isinstance(model, LanguageTransformer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=chosen.lr, weight_decay=chosen.weight_decay
    )
    steps = chosen.steps(len(text.train))
    (task.folder / "series").mkdir(parents=True, exist_ok=True)
    with RecordWriter(task.folder / "records.jsonl") as records:
        course = _Course(task, model, text, records, steps, progress)
        with watch(model, optimizer, to=_Total(records), every=chosen.watch_every):
            course.begin()
            loop.train(
                model,
                optimizer,
                _moved(chosen, text, task.seed, device),
                loss=next_word,
                observers=[course.observe],
                schedule=Schedule(optimizer, multiplier(chosen.schedule, steps=steps)),
            )
    course.end()


def _moved(
    chosen: SmallModel, text: SmallText, seed: int, device: torch.device
) -> Iterator[SmallBatch]:
    padded = chosen.mask == "zero"
    kept = shuffled(text.train, size=chosen.batch, padded=padded, seed=seed, epochs=chosen.epochs)
    return (batch.to(device) for batch in kept)


class _Course:
    """Checkpoints of the encoder, development loss after each epoch, the best model kept."""

    def __init__(
        self,
        task: _Task,
        model: LanguageTransformer,
        text: SmallText,
        records: RecordWriter,
        steps: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self._task, self._model, self._text, self._records = task, model, text, records
        self._steps, self._progress = steps, progress
        self._epoch = steps // task.chosen.epochs
        count = min(task.chosen.checkpoints, steps)
        self._due = {round(steps * k / count) for k in range(count + 1)}
        self._losses: dict[int, float] = {}
        self._best = 0

    def begin(self) -> None:
        """Before the first step."""
        _save(self._model.state_dict(), self._task.folder / "initial.safetensors")
        self._checkpoint(0)
        self._losses[0] = self._scores(self._text.validation).loss

    def observe(self, event: loop.StepTaken) -> None:
        if event.step in self._due:
            self._checkpoint(event.step)
            self._records.write(Record(event.step, "loss", event.loss.item()))
            self._progress(event.step, self._steps)
        if event.step % self._epoch == 0:
            loss = self._scores(self._text.validation).loss
            self._losses[event.step] = loss
            if self._best == 0 or loss < self._losses[self._best]:
                self._best = event.step
                _save(self._model.state_dict(), self._task.folder / "best.safetensors")
            self._model.train()

    def end(self) -> None:
        """Scores on test, and the summary that says that all was done."""
        self._model.load_state_dict(load_file(self._task.folder / "best.safetensors"))
        found = self._scores(self._text.test)
        _save({"nats": found.nats, "words": found.words}, self._task.folder / "test.safetensors")
        told = {
            "model": asdict(self._task.chosen),
            "steps": self._steps,
            "best_step": self._best,
            "losses": self._losses,
            "right": found.right,
        }
        (self._task.folder / _SUMMARY).write_text(json.dumps(told), encoding="utf-8")

    def _checkpoint(self, step: int) -> None:
        encoder = selected(self._model)
        _save(encoder, self._task.folder / "series" / f"step{step:08d}.safetensors")
        everything = dict(self._model.named_parameters())
        self._records.write(Record(step, "norm_of_everything", float(norm(everything))))
        if step == 0:
            self._records.write(Record(0, "norm", float(norm(encoder))))

    def _scores(self, split: Split) -> Scores:
        padded = self._task.chosen.mask == "zero"
        return scores(self._model, split, padded=padded, device=torch.device(self._task.device))


class _Total:
    """A watch's records of the encoder as a whole."""

    def __init__(self, records: RecordWriter) -> None:
        self._records = records

    def write_all(self, records: Iterable[Record]) -> None:
        self._records.write_all(
            Record(each.step, each.name, each.value)
            for each in records
            if each.name in _WATCHED and each.labels.get("by") == "total"
        )

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        """The writer is closed by whom it belongs to."""


def _read(task: _Task) -> TrainedModel:
    chosen = task.chosen
    told = json.loads((task.folder / _SUMMARY).read_text(encoding="utf-8"))
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


def _model(task: _Task, text: SmallText, file: str) -> LanguageTransformer:
    model = build(task.chosen.config(len(text.vocabulary)), seed=task.seed).to(task.device)
    assert isinstance(model, LanguageTransformer)
    model.load_state_dict(load_file(task.folder / file, device=task.device))
    return model.eval()


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: each.detach().contiguous() for name, each in tensors.items()}, path)
