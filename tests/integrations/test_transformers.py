"""The Trainer's records are those of a raw loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler

import orderone
from orderone.core.record import read_records

pytest.importorskip("accelerate")

STEPS, BATCH, ACCUMULATED = 4, 2, 2


def model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, **dropout)
    )


def sentences() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(50, (STEPS * BATCH * ACCUMULATED, 16), generator=generator)
    return [{"input_ids": each, "labels": each} for each in words]


def raw(folder: Path) -> pl.DataFrame:
    watched = model()
    optimizer = torch.optim.AdamW(watched.parameters(), lr=1e-2)
    data = sentences()
    with orderone.watch(watched, optimizer, to=folder, every=2):
        for step in range(STEPS):
            for micro in range(ACCUMULATED):
                start = (step * ACCUMULATED + micro) * BATCH
                part = data[start : start + BATCH]
                words = torch.stack([each["input_ids"] for each in part])
                # The Trainer divides by the labels of the whole step, first words included.
                labels = BATCH * ACCUMULATED * words.shape[1]
                watched(input_ids=words, labels=words, num_items_in_batch=labels).loss.backward()
            nn.utils.clip_grad_norm_(watched.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return read_records(folder / "records.jsonl")


def by_trainer(folder: Path) -> pl.DataFrame:
    from transformers import Trainer, TrainingArguments

    from orderone.integrations.transformers import WatchCallback

    class InOrder(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(train_dataset or self.train_dataset)

    watched = model()
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        max_grad_norm=0.1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    optimizer = torch.optim.AdamW(watched.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = InOrder(
        model=watched,
        args=arguments,
        train_dataset=sentences(),
        optimizers=(optimizer, schedule),
        callbacks=[WatchCallback(to=folder / "run", every=2)],
    )
    trainer.train()
    assert not optimizer._optimizer_step_pre_hooks
    return read_records(folder / "run" / "records.jsonl")


def test_the_trainer_gives_the_records_of_a_raw_loop(tmp_path: Path) -> None:
    """Accumulated and clipped; before clipping too, which the Trainer's own hooks cannot see."""
    expected = raw(tmp_path / "raw")
    everything = by_trainer(tmp_path)
    found = everything.filter(pl.col("by").is_not_null())
    keys = ["step", "name", "by", "group"]
    assert found.select(keys).equals(expected.select(keys))
    assert "gradient_norm_before_clipping" in set(found["name"])
    for a, b in zip(found["value"], expected["value"], strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert everything.filter(pl.col("name") == "loss")["step"].to_list() == [1, 2, 3, 4]
