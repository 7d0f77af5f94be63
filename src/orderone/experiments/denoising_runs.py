"""Span denoising as [DYZ23] §II.2 trains it: at the paper's size, and smaller.

A smaller model keeps the paper's distributions and not its numbers: where every weight has std 0.02
at n = 1024, it has 0.02 √(1024/n), so that C_Q = n std² and the size of the logits stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from orderone.core.errors import DataError
from orderone.experiments.reproduction import Stage
from orderone.experiments.side_by_side import Course
from orderone.models.presets import preset

STANDARD, TANGENT = "standard", "neural-tangent"
DECAY = 0.01
"""Of standard runs; a neural tangent one has n^(−3/2) times it."""
STD, STD_WIDTH = 0.02, 1024
STEPS, WARM_UP, BATCH, T = 200_000, 5_000, 512, 514
EARLY = 15_000
PARAMETERS = {"bart-large": 404_845_568, "r2c2": 2_688_739_328}
_GPT2_PAD = 50_257
"""[pad] follows GPT-2's own tokens."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a model and its trainings."""

    n: int
    layers: int
    """Of the encoder, and as many of the decoder."""
    steps: int
    warmup: int
    batch: int
    T: int
    vocabulary: int
    text: int
    """Bytes of the standard library's sources."""
    length: int | None = None
    """Steps that the schedule is laid out for, where the run is its beginning only."""
    std_width: int | None = None
    """Width at which C_Q is BART-large's; n where not given."""
    preset: str | None = None
    """One of the paper's models, whose settings replace the ones above."""
    micro_batch: int = BATCH


def denoising_run(
    stage: Stage, size: Size, *, strategy: str, lr: float, seed: int
) -> dict[str, Any]:
    """A run's settings; ``lr`` is the standard one, which the map multiplies by n^(3/2)."""
    factor = 1.0 if strategy == STANDARD else size.n**1.5
    return {
        "seed": seed,
        "steps": size.steps,
        "batch_size": size.batch,
        "clip": 0.1,
        "optimizer": {
            "name": "AdamW",
            "lr": lr * factor,
            "weight_decay": DECAY / factor,
            "settings": {"betas": [0.9, 0.998], "eps": 1e-6},
        },
        "schedule": {"kind": "linear", "warmup": size.warmup, "length": size.length},
        **(_small(size, strategy) if size.preset is None else _published(stage, size, strategy)),
    }


def curves(courses: dict[str, list[Course]], by: str) -> pl.DataFrame:
    """``by``, step, loss: the mean over the seeds that were still there, after the first step."""
    rows: list[tuple[str, int, float]] = []
    for name, each in courses.items():
        at: dict[int, list[float]] = {}
        for course in each:
            for step, loss in course.losses:
                at.setdefault(step, []).append(loss)
        rows += [(name, step, sum(losses) / len(losses)) for step, losses in sorted(at.items())]
    kept = [row for row in rows if row[1] > 0 and math.isfinite(row[2])]
    schema = {by: pl.String, "step": pl.Int64, "loss": pl.Float64}
    return pl.DataFrame(kept, schema=schema, orient="row")


def _small(size: Size, strategy: str) -> dict[str, Any]:
    return {
        "evaluate_every": max(5, size.steps // 15),
        "evaluation_batches": 8,
        "model": {
            "kind": "encoder-decoder",
            "n": size.n,
            "H": max(2, size.n // 16),
            "encoders": size.layers,
            "decoders": size.layers,
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "plan": {
            "strategy": strategy,
            "constants": _constants(size, strategy),
            "multiplier_in_fans": False,
        },
        "data": {
            "corpus": "stdlib",
            "limit": size.text,
            "vocabulary": size.vocabulary,
            "T": size.T,
            "batches": "spans",
        },
    }


def _constants(size: Size, strategy: str, M: int = 4) -> dict[str, float]:
    """C_G at which every weight has one std, but C_WE = 1 of the neural tangent's."""
    variance = STD**2 * STD_WIDTH / (size.std_width or size.n)
    return {
        **dict.fromkeys("QKVUW", variance * size.n),
        "X": variance * M * size.n,
        "position": variance,
        "word": variance if strategy == STANDARD else 1.0,
    }


def _published(stage: Stage, size: Size, strategy: str) -> dict[str, Any]:
    text, pairs = _given(stage.data)
    return {
        "evaluate_every": 1000,
        "evaluation_batches": 64,
        "micro_batch": size.micro_batch,
        "precision": "float16",
        "checkpoint_every": 1000,
        "model": {"name": f"preset:{size.preset}", "pad": _GPT2_PAD},
        "plan": {
            "strategy": strategy,
            "constants": "language" if strategy == STANDARD else "language-word",
            "multiplier_in_fans": False,
        },
        "data": {
            "corpus": str(text),
            "tokenizer_folder": str(pairs),
            "T": size.T,
            "batches": "spans",
        },
    }


def _given(data: Path | None) -> tuple[Path, Path]:
    if data is None or not (data / "text").is_dir() or not (data / "gpt2").is_dir():
        raise DataError(
            f"{'no --data' if data is None else repr(str(data))} for the paper's scale",
            expected="a folder of text/ and gpt2/, with GPT-2's vocab.json and merges.txt",
            do="name one, or take another scale",
        )
    return data / "text", data / "gpt2"


def published_size(name: str, *, steps: int, micro_batch: int) -> Size:
    """BART-large or R2C2."""
    config = preset(name)
    assert config.kind == "encoder-decoder"
    return Size(
        n=config.n,
        layers=config.encoders,
        steps=steps,
        warmup=WARM_UP,
        batch=BATCH,
        T=T,
        vocabulary=config.n_vocab,
        text=0,
        length=STEPS,
        preset=name,
        micro_batch=micro_batch,
    )
