"""Classification of images as [DYZ23] §II.1 trains it: at the paper's size, and smaller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderone.core.errors import DataError
from orderone.experiments.reproduction import Stage
from orderone.experiments.search import Searched

STARTS = {
    "standard": (1e-3, 0.8),
    "neural-tangent": (20.0, 4e-5),
    "hybrid": (4.0, 2e-4),
    "maximal-update": (0.4, 1e-3),
}
"""Published optima (lr, wd), where the paper's scale starts."""
POWERS = {"standard": 0.0, "neural-tangent": 3 / 2, "hybrid": 5 / 4, "maximal-update": 1.0}
"""Of n, in the factors 1/λ̃ of Q, K, V, U, W and X: what lr is multiplied by, and wd divided."""
STEPS_AN_EPOCH, EPOCHS, WARM = 312, 300, 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the trainings and of the search."""

    n: int
    encoders: int
    steps: int
    batch: int
    lr: float
    """Where the standard search starts."""
    decay: float
    trials: int
    """At most, of each search."""
    seeds: int


PAPER = Size(
    n=768,
    encoders=12,
    steps=STEPS_AN_EPOCH * EPOCHS,
    batch=4096,
    lr=1e-3,
    decay=0.8,
    trials=60,
    seeds=3,
)


def vision_run(stage: Stage, size: Size, *, strategy: str) -> dict[str, Any]:
    """A run's, at the start of the strategy's search."""
    lr, decay = size.lr * size.n ** POWERS[strategy], size.decay / size.n ** POWERS[strategy]
    if stage.scale == "paper":
        lr, decay = STARTS[strategy]
    return {
        **(_imagenet(stage) if stage.scale == "paper" else _digits(size)),
        "seed": stage.seed,
        "steps": size.steps,
        "batch_size": size.batch,
        "plan": {"strategy": strategy, "constants": "vision", "multiplier_in_fans": False},
        "optimizer": {
            "name": "AdamW",
            "lr": lr,
            "weight_decay": decay,
            "settings": {"betas": [0.9, 0.999], "eps": 1e-8},
        },
    }


def shift(name: str, found: Mapping[str, Searched]) -> tuple[float, float]:
    """Doublings of (lr, wd) from the standard optimum to this one."""
    here, there = found[name], found["standard"]
    return math.log2(here.lr / there.lr), math.log2(here.weight_decay / there.weight_decay)


def mapped_optimum(name: str, found: Mapping[str, Searched], n: int) -> tuple[float, float]:
    """Where the factors take the standard optimum."""
    factor, standard = n ** POWERS[name], found["standard"]
    return standard.lr * factor, standard.weight_decay / factor


def away(name: str, found: Mapping[str, Searched], n: int) -> float:
    """Doublings between an optimum and the mapped standard one, the larger of lr's and wd's."""
    expected = POWERS[name] * math.log2(n)
    lr, decay = shift(name, found)
    # Points of one grid are whole doublings apart, up to rounding.
    return round(max(abs(lr - expected), abs(decay + expected)), 6)


def _digits(size: Size) -> dict[str, Any]:
    return {
        "evaluate_every": max(5, size.steps // 20),
        "evaluation_batches": 100,
        "model": {
            "kind": "vision",
            "n": size.n,
            "H": max(2, size.n // 16),
            "encoders": size.encoders,
            "patch": 2,
        },
        "images": {"name": "digits", "augmentation": "paper"},
        "schedule": {"kind": "cosine", "warmup": size.steps * WARM // EPOCHS},
    }


def _imagenet(stage: Stage) -> dict[str, Any]:
    if stage.data is None:
        raise DataError(
            "no images for the paper's scale",
            expected="--data with ImageNet-1k's folder of train/CLASS and val/CLASS",
            do="name it, or take another scale",
        )
    return {
        "evaluate_every": STEPS_AN_EPOCH,
        "evaluation_batches": 1 << 20,
        "micro_batch": 512,
        "precision": "bfloat16",
        "checkpoint_every": STEPS_AN_EPOCH,
        "model": {"name": "preset:vit-b16"},
        "images": {"name": str(stage.data), "augmentation": "paper"},
        "schedule": {"kind": "cosine", "warmup": WARM * STEPS_AN_EPOCH},
    }
