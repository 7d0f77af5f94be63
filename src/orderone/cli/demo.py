"""``orderone demo``: a small language model learns the text of the running Python, in a minute."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import polars as pl
    from rich.progress import Progress
    from torch import nn

    from orderone.core.record import RecordWriter
    from orderone.data.batches import PackedStream
    from orderone.models.config import LanguageConfig
    from orderone.report.page import Section
    from orderone.training.losses import WordBatch

VOCABULARY, T, BATCH = 2_000, 128, 16
VALIDATION_BATCHES = 8
EVALUATE_EVERY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is learned: the model's shape, its training stream, and words held out of it."""

    config: LanguageConfig
    training: PackedStream
    training_tokens: int
    validation: Sequence[WordBatch]
    word_frequency_loss: float
    """Loss in nats of always predicting by the frequency of tokens in the training text."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    parameters: int
    steps: int
    tokens_per_second: float
    loss_before: float
    loss_after: float
    word_frequency_loss: float


def demo(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to train.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small language model on real text and leave a run folder to look at."""
    # Here and not above: `orderone --help` need not wait for torch.
    import torch
    from rich.console import Console
    from safetensors.torch import save_model

    from orderone.core.run import RunFolder, new_run_path
    from orderone.models.build import build
    from orderone.report.page import page

    # More threads than idle cores wait for each other at every operation of so small a model.
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // 2)))
    console = Console(quiet=as_json)
    console.print("Reading the sources of Python's standard library, training a tokenizer ...")
    lesson = _lesson(seed)
    model = build(lesson.config, seed=seed)
    settings = {"seconds": seconds, "model": lesson.config.model_dump(mode="json")}
    path = to or new_run_path(name="demo")
    run = RunFolder.create(path, command="demo", config=settings, seed=seed)
    with run.writer() as records, _progress(as_json) as progress:
        outcome = _train(model, lesson, records, progress, seconds=seconds)

    save_model(model, str(run.checkpoints / f"step{outcome.steps}.safetensors"))
    found = _found(outcome)
    sections = [_learning_curve(run.records(), outcome.word_frequency_loss)]
    (run.path / "report.html").write_text(
        page(title="orderone demo", found=found, sections=sections), encoding="utf-8"
    )
    run.finish("done", asdict(outcome))
    if as_json:
        typer.echo(json.dumps({"run": str(run.path), **asdict(outcome)}))
        return
    for sentence in [*found, f"Run folder: {run.path}", f"Page: {run.path / 'report.html'}"]:
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def _lesson(seed: int) -> Lesson:
    """Python's standard library as byte pairs, and a model small enough for a laptop."""
    import torch

    from orderone.data.batches import PackedStream
    from orderone.data.bpe import BytePairs
    from orderone.data.corpora import corpus
    from orderone.models.config import LanguageConfig

    text = corpus("stdlib")
    tokenizer = BytePairs.train(text.train, size=VOCABULARY)
    training = tokenizer.encode_many(text.train).tokens
    held_out = tokenizer.encode_many(text.validation).tokens
    validation = PackedStream(held_out, T=T, batch_size=BATCH, seed=0, epochs=1)
    batches = list(islice(validation, VALIDATION_BATCHES))
    counts = torch.bincount(torch.as_tensor(training), minlength=len(tokenizer)) + 1.0
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    return Lesson(
        config=LanguageConfig(n=128, H=4, encoders=4, T=T, n_vocab=len(tokenizer)),
        training=PackedStream(training, T=T, batch_size=BATCH, seed=seed),
        training_tokens=len(training),
        validation=batches,
        word_frequency_loss=-(counts / counts.sum()).log()[targets].mean().item(),
    )


def _train(
    model: nn.Module,
    lesson: Lesson,
    records: RecordWriter,
    progress: Progress,
    *,
    seconds: float,
) -> Outcome:
    """Train until the time is up; every step's loss is a record, and now and then validation's."""
    import torch

    from orderone.core.record import Record
    from orderone.training.loop import StepTaken, train
    from orderone.training.losses import mean_loss, next_word_loss

    def validate(step: int) -> float:
        loss = mean_loss(model, lesson.validation)
        records.write(Record(step, "loss", loss, {"split": "validation"}))
        return loss

    parameters = sum(parameter.numel() for parameter in model.parameters())
    task = progress.add_task(f"{parameters:,} parameters", total=seconds, loss=float("nan"))
    before = validate(0)
    start = evaluated = time.perf_counter()

    def observe(event: StepTaken) -> bool:
        nonlocal evaluated
        loss = event.loss.item()
        records.write(Record(event.step, "loss", loss, {"split": "train"}))
        elapsed = time.perf_counter() - start
        progress.update(task, completed=min(elapsed, seconds), loss=loss)
        if elapsed - (evaluated - start) > EVALUATE_EVERY_SECONDS:
            validate(event.step)
            evaluated = time.perf_counter()
        return elapsed < seconds

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    steps = train(model, optimizer, lesson.training, loss=next_word_loss, observers=[observe])
    spent = time.perf_counter() - start
    return Outcome(
        parameters=parameters,
        steps=steps,
        tokens_per_second=round(steps * BATCH * T / spent, 1),
        loss_before=before,
        loss_after=validate(steps),
        word_frequency_loss=lesson.word_frequency_loss,
    )


def _progress(quiet: bool) -> Progress:
    # On stderr: standard output holds the result alone.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def _found(outcome: Outcome) -> list[str]:
    return [
        f"A decoder of {outcome.parameters:,} parameters took {outcome.steps:,} steps at "
        f"{outcome.tokens_per_second:,.0f} tokens/s.",
        f"Validation loss fell from {outcome.loss_before:.3f} to {outcome.loss_after:.3f} nats a "
        f"token; predicting by token frequency alone scores {outcome.word_frequency_loss:.3f}.",
    ]


def _learning_curve(records: pl.DataFrame, word_frequency_loss: float) -> Section:
    from orderone.report.charts import lines, svg
    from orderone.report.page import Section

    # Training first, so that the smoother validation curve is drawn over it.
    losses = records.filter(name="loss").select("step", "value", "split").sort("split", "step")
    chart = lines(
        losses,
        x=("step", "step"),
        y=("value", "loss (nats a token)"),
        colour=("split", "text"),
        title="What the model learned",
        subtitle=f"Token frequencies alone: {word_frequency_loss:.2f} nats",
    )
    return Section(
        heading="Loss",
        picture=svg(chart),
        alternative="Training and validation loss against step",
    )
