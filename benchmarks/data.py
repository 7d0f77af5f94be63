"""Tokens per second of the three kinds of batches beside those of a small encoder–decoder.

Text: the running Python's own sources, byte pairs of 2,000 tokens. The model is far smaller than
the published ones (n 256, 2 + 2 layers), so it asks more of the data than they would. One thread;
batches and training take turns. ratio = denoising tokens/s / training tokens/s: how many such
models one core could feed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.nn import functional

from orderone.core.targets import IGNORED
from orderone.data.batches import PackedStream, SentenceBatches
from orderone.data.bpe import BytePairs
from orderone.data.corpora import corpus
from orderone.data.denoising import DenoisingBatch, DenoisingBatches
from orderone.models import EncoderDecoderConfig, build

VOCABULARY = 2000


def prepared() -> tuple[BytePairs, list[str]]:
    start = time.perf_counter()
    lines = corpus("stdlib").train
    read = time.perf_counter()
    pairs = BytePairs.train(lines, size=VOCABULARY)
    trained = time.perf_counter()
    tokens = len(pairs.encode_many(lines).tokens)
    encoded = time.perf_counter()
    print(
        f"{sum(map(len, lines)) / 1e6:.1f} MB of text: read {read - start:.2f} s, byte pairs"
        f" {trained - read:.2f} s, encoded {encoded - trained:.2f} s ({tokens:,} tokens)"
    )
    return pairs, lines


def rate(batches: Iterator[Any], tokens: Callable[[Any], int], count: int) -> float:
    """Real tokens per second of CPU time over ``count`` batches."""
    start = time.process_time()
    made = sum(tokens(batch) for batch in islice(batches, count))
    return made / (time.process_time() - start)


def trainer(pairs: BytePairs) -> Callable[[DenoisingBatch], None]:
    model = build(
        EncoderDecoderConfig(
            n=256, H=4, encoders=2, decoders=2, n_vocab=VOCABULARY, T=514, pad=pairs.pad
        ),
        seed=0,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"model of {sum(p.numel() for p in model.parameters()):,} parameters")

    def train(batch: DenoisingBatch) -> None:
        out = model(batch.source, batch.target_in, batch.source_real, batch.target_real)
        loss = functional.cross_entropy(
            out.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    pairs, lines = prepared()
    text = pairs.encode_many(lines)
    sentences = pairs.encode_many((line + "\n" for line in lines), end=False)
    size = chosen.batch
    noisy = DenoisingBatches(sentences, special=pairs.special, batch_size=size)
    by_length = SentenceBatches(text, pad=pairs.pad, tokens_per_batch=512 * size)
    stream = PackedStream(text.tokens, T=512, batch_size=size)
    train = trainer(pairs)
    rounds: list[list[float]] = []
    for _ in range(chosen.rounds + 1):
        rates = [
            rate(noisy, lambda batch: int(batch.target_real.sum()), 40),
            rate(by_length, lambda batch: int(batch.real.sum()), 40),
            rate(stream, lambda batch: batch.tokens.numel(), 40),
        ]
        batch = next(noisy)
        start = time.process_time()
        train(batch)
        rounds.append([*rates, int(batch.target_real.sum()) / (time.process_time() - start)])
    # The first round warms up.
    denoising, sentence, packed, model = map(statistics.median, zip(*rounds[1:], strict=True))
    print(f"span denoising    {denoising:14,.0f} tokens/s")
    print(f"sentence batches  {sentence:14,.0f} tokens/s")
    print(f"packed stream     {packed:14,.0f} tokens/s")
    print(f"model's training  {model:14,.0f} tokens/s")
    rates = {"denoising": denoising, "sentences": sentence, "packed": packed, "model": model}
    whole = {f"{name}_tokens_per_s": round(value) for name, value in rates.items()}
    print(json.dumps({"bench": "data", **whole, "ratio": round(denoising / model, 1)}))


if __name__ == "__main__":
    main()
