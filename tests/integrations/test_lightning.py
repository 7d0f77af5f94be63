"""The records of Lightning's Trainer are those of a raw loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ModelError
from orderone.core.record import read_records

pytest.importorskip("lightning")

STEPS, ACCUMULATED = 4, 2


def body() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(STEPS * ACCUMULATED, 8, 16, generator=generator))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.roll(1, -1))


def raw(folder: Path) -> pl.DataFrame:
    model = body()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with orderone.watch(model, optimizer, to=folder, every=2) as watch:
        for k, x in enumerate(batches()):
            loss = loss_of(model, x)
            (loss / ACCUMULATED).backward()
            if (k + 1) % ACCUMULATED == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
                watch.log(loss=loss)
    return read_records(folder / "records.jsonl")


def by_lightning(folder: Path, optimizers: int = 1) -> pl.DataFrame:
    from lightning.pytorch import LightningModule, Trainer

    from orderone.integrations.lightning import WatchCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = body()
            self.automatic_optimization = optimizers == 1

        def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
            return loss_of(self.body, x)

        def configure_optimizers(self) -> Any:
            return [torch.optim.AdamW(self.body.parameters(), lr=1e-2) for _ in range(optimizers)]

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=ACCUMULATED if optimizers == 1 else 1,
        gradient_clip_val=0.1 if optimizers == 1 else None,
        callbacks=[WatchCallback(to=folder, every=2)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(batches(), batch_size=None)  # pyright: ignore
    trainer.fit(Module(), loader)
    return read_records(folder / "records.jsonl")


def test_lightning_gives_the_records_of_a_raw_loop(tmp_path: Path) -> None:
    """Accumulated and clipped, with the whole step inside a closure."""
    expected, found = raw(tmp_path / "raw"), by_lightning(tmp_path / "run")
    # A module inside another has longer names, and here the same total.
    keys = ["step", "name"]
    total = (pl.col("by") == "total") | pl.col("by").is_null()
    expected, found = expected.filter(total), found.filter(total)
    assert found.select(keys).equals(expected.select(keys))
    assert "gradient_norm_before_clipping" in set(found["name"])
    for a, b in zip(found["value"], expected["value"], strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_of_several_optimizers_one_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="2 optimizers"):
        by_lightning(tmp_path / "run", optimizers=2)
