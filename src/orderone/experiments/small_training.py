"""One training of a small language model, and what it leaves in its folder.

initial.safetensors      the model before training
best.safetensors         at the epoch of the lowest development loss
series/                  checkpoints of the encoder, for ``trajectory``
records.jsonl            of the watched encoder, and the norm of everything
test.safetensors         nats and words of each test sentence, by rising length
trained.json             written last: all is there
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.record import Record, RecordWriter
from orderone.core.reductions import norm
from orderone.core.selection import selected
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
from orderone.models.build import build
from orderone.models.config import LanguageConfig
from orderone.models.language import LanguageTransformer
from orderone.probes.watch import watch
from orderone.training import loop
from orderone.training.schedules import Kind, Multiplier, Schedule, multiplier

SUMMARY = "trained.json"
_EVALUATED = 64  # sentences that are scored together
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
    warmup: int = 0
    """Steps over which the rate rises."""
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

    def multiplier(self, steps: int) -> Multiplier:
        """Of ``lr``, by step."""
        return multiplier(self.schedule, steps=steps, warmup=self.warmup)

    def steps(self, sentences: int) -> int:
        """Of all epochs."""
        return self.epochs * math.ceil(sentences / self.batch)


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


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training to be done."""

    chosen: SmallModel
    folder: Path
    device: str
    data: Path | None
    seed: int


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


def quiet(done: int, total: int) -> None:
    """Of a training in a process of its own."""


def train(task: Task, progress: Callable[[int, int], None] = quiet) -> None:
    """Trains into the task's folder."""
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
                schedule=Schedule(optimizer, chosen.multiplier(steps)),
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
        task: Task,
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
        (self._task.folder / SUMMARY).write_text(json.dumps(told), encoding="utf-8")

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


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: each.detach().contiguous() for name, each in tensors.items()}, path)
