"""Our training loop's tokens a second against a bare loop of the same model.

Ours is a whole run: schedule, gradient norm, records on disk, the check for lost numbers. The bare
loop is what one writes by hand: zero_grad, forward, backward, clip_grad_norm_, step. One step of
each in turn, one thread, CPU time; ratio = the bare loop's time / ours: at least 0.98. Then a
reading of our loop at nanoGPT-like settings: 6 layers, 384 wide, 256 tokens.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from orderone.core.run import RunFolder
from orderone.data.batches import PackedStream
from orderone.models import LanguageConfig, build
from orderone.training.config import TrainingConfig, checked
from orderone.training.course import train
from orderone.training.losses import next_word_loss


class Bare:
    """A model, an optimizer and a step by hand."""

    def __init__(self, config: LanguageConfig, batches: PackedStream) -> None:
        self.model = build(config, seed=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.batches = batches

    def step(self) -> float:
        """CPU time of one step; its loss is read, as a loop that prints it would."""
        start = time.process_time()
        batch = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(batch.tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        loss.item()
        return time.process_time() - start


def stream(config: LanguageConfig, batch: int) -> PackedStream:
    tokens = np.random.default_rng(0).integers(config.n_vocab, size=200_000, dtype=np.int32)
    return PackedStream(tokens, T=config.T, batch_size=batch)


def measured(
    config: LanguageConfig, *, batch: int, steps: int, against: bool
) -> list[tuple[float, float]]:
    """Seconds of our step and of the bare one that follows it; the first steps warm up."""
    bare = Bare(config, stream(config, batch)) if against else None
    pairs: list[tuple[float, float]] = []
    began = time.process_time()

    def observe(_: Any) -> None:
        nonlocal began
        ours = time.process_time() - began
        pairs.append((ours, bare.step() if bare else 0.0))
        began = time.process_time()

    model = build(config, seed=0)
    settings = {
        "steps": steps,
        "batch_size": batch,
        "clip": 1.0,
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup": 2},
    }
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            [{"params": list(model.parameters())}],
            stream(config, batch),
            loss=next_word_loss,
            config=checked(TrainingConfig, settings),
            observers=[observe],
            run=RunFolder.create(Path(folder) / "run", command="train", config={}, seed=0),
        )
    return pairs[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--reading-steps", type=int, default=8)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    batch = 8
    small = LanguageConfig(n=256, H=4, encoders=4, n_vocab=4096, T=128)
    pairs = measured(small, batch=batch, steps=chosen.steps, against=True)
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    tokens = batch * small.T
    print(
        f"{sum(p.numel() for p in build(small).parameters()):,} parameters, {tokens} tokens a step"
    )
    print(f"ours   {ours:.4f} s a step   {tokens / ours:,.0f} tokens/s")
    print(f"bare   {bare:.4f} s a step   {tokens / bare:,.0f} tokens/s")
    large = LanguageConfig(n=384, H=6, encoders=6, n_vocab=50_304, T=256)
    reading = measured(large, batch=4, steps=chosen.reading_steps, against=False)
    rate = 4 * large.T / statistics.median(a for a, _ in reading)
    print(f"6 layers, 384 wide, 256 tokens: {rate:,.0f} tokens/s")
    result = {
        "bench": "train",
        "ours_s": round(ours, 5),
        "bare_s": round(bare, 5),
        "nanogpt_like_tokens_per_s": round(rate, 1),
        "ratio": round(ratio, 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
