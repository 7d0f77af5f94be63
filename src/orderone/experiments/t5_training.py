"""A T5-like encoder–decoder trained on real text, and its checkpoints read as a trajectory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from orderone.core.errors import DataError
from orderone.core.run import RunFolder
from orderone.core.selection import Selection
from orderone.core.targets import IGNORED
from orderone.data.bpe import BytePairs
from orderone.data.corpora import Corpus, corpus
from orderone.data.denoising import DenoisingBatch, DenoisingBatches
from orderone.experiments.reproduction import Stage
from orderone.models.build import build
from orderone.models.config import EncoderDecoderConfig
from orderone.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from orderone.training.course import train
from orderone.training.loop import StepTaken
from orderone.trajectory.series import trajectory
from orderone.trajectory.told import Trajectory

T5 = EncoderDecoderConfig(
    n=768,
    H=12,
    encoders=12,
    decoders=12,
    d_ff=3072,
    n_vocab=32_128,
    T=512,
    activation="relu",
    affine=True,
    stem_norm=False,
    init_std=None,
    output_multiplier=768**-0.5,
)
"""T5-base in our blocks."""
ENCODER = Selection(include=(r"^encoder\.(blocks|norm)\.",))
"""Without its positions, which T5's has not: they are an embedding."""
STEPS = 524_288
BATCH = 128


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the series that we train."""

    config: EncoderDecoderConfig
    steps: int
    batch: int
    warmup: int
    every: int
    """Steps between checkpoints."""
    text: int | None
    """Bytes of Python's library; None: the text that --data names."""


def _miniature(*, n: int, layers: int, n_vocab: int, T: int) -> EncoderDecoderConfig:
    return T5.replace(
        n=n,
        H=n // 16,
        encoders=layers,
        decoders=layers,
        d_ff=4 * n,
        n_vocab=n_vocab,
        T=T,
        output_multiplier=n**-0.5,
    )


def t5_size(stage: Stage) -> Size:
    smoke = Size(
        config=_miniature(n=32, layers=1, n_vocab=400, T=32),
        steps=160,
        batch=8,
        warmup=16,
        every=8,
        text=60_000,
    )
    laptop = Size(
        config=_miniature(n=96, layers=3, n_vocab=2048, T=64),
        steps=2400,
        batch=16,
        warmup=80,
        every=24,
        text=4_000_000,
    )
    paper = Size(config=T5, steps=STEPS, batch=BATCH, warmup=10_000, every=5100, text=None)
    return stage.pick(smoke=smoke, laptop=laptop, paper=paper)


def t5_like_series(stage: Stage, size: Size) -> dict[str, Trajectory]:
    """The encoder's and the whole network's trajectory, from checkpoints that are then removed."""
    run = RunFolder.create(
        stage.run.path / "trained",
        command="t5-norms",
        config=size.config.model_dump(mode="json"),
        seed=stage.seed,
    )
    _train(stage, size, run)
    found = {
        "encoder": trajectory(run.checkpoints, selection=ENCODER),
        "total": trajectory(run.checkpoints),
    }
    shutil.rmtree(run.checkpoints)
    return found


def _train(stage: Stage, size: Size, run: RunFolder) -> None:
    """Denoising with Adafactor, whose step is relative to the parameters, at a rate 1/√t."""
    torch.manual_seed(stage.seed)
    model = build(size.config, device="cpu").to(stage.device)

    def loss(network: nn.Module, batch: DenoisingBatch) -> Tensor:
        return denoising_loss(network, batch.to(stage.device))

    def told(event: StepTaken) -> None:
        stage.progress(event.step, size.steps)

    train(
        model,
        [{"params": list(model.parameters())}],
        _batches(stage, size),
        loss=loss,
        config=TrainingConfig(
            seed=stage.seed,
            steps=size.steps,
            batch_size=size.batch,
            optimizer=OptimizerConfig(name="Adafactor", lr=0.01),
            schedule=ScheduleConfig(kind="inverse-sqrt", warmup=size.warmup),
            checkpoint_every=size.every,
            keep=size.steps,
        ),
        observers=[told],
        run=run,
    )


def denoising_loss(model: nn.Module, batch: DenoisingBatch) -> Tensor:
    """Mean cross-entropy in nats per token of the text to be restored."""
    logits = model(batch.source, batch.target_in, batch.source_real, batch.target_real)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED
    )


def _batches(stage: Stage, size: Size) -> DenoisingBatches:
    text = corpus("stdlib", limit=size.text) if size.text is not None else _given(stage.data)
    pairs = BytePairs.train(text.train, size=size.config.n_vocab)
    return DenoisingBatches(
        pairs.encode_many((line + "\n" for line in text.train), end=False),
        special=pairs.special,
        batch_size=size.batch,
        T=size.config.T,
        seed=stage.seed,
    )


def _given(data: Path | None) -> Corpus:
    if data is None:
        raise DataError(
            "no text for T5-base's pretraining",
            expected="--data with a folder of text, such as C4's",
            do="name one, or take another scale",
        )
    return corpus(data)
