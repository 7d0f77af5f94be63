"""Saturation of a BERT-base-shaped model on 100 sentences against the obvious code.

The obvious code runs one sentence at a time through the model and through a copy of it whose
weights are all scaled. ``ratio`` is our CPU time over its; both take every matrix product twice.
``memory`` is what a process holds beside the model at most, in parts of the model's size; it gives
freed memory back at once, so that its size is what it uses.
"""

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from orderone.core.generators import generator_for
from orderone.data.real_text import some_sentences
from orderone.probes.saturation import saturation

WORDS = 30_522
TYPICAL = (24, 11)  # mean and deviation of Brown's sentences, in word pieces


def lengths_of(text: Path | None, count: int) -> list[int]:
    """Word pieces a sentence: 1.15 a word and two special ones, or drawn like Brown's."""
    if text is not None:
        return [round(1.15 * len(s.split())) + 2 for s in some_sentences(text, count=count)]
    drawn = torch.randn(count, generator=generator_for(0, "lengths")) * TYPICAL[1] + TYPICAL[0]
    return [max(5, min(80, round(x))) for x in drawn.tolist()]


def batches(lengths: list[int], tokens: int) -> list[dict[str, Tensor]]:
    ranked, made = sorted(lengths, reverse=True), []
    while ranked:
        size = max(1, tokens // ranked[0])
        part, ranked = ranked[:size], ranked[size:]
        real = torch.arange(part[0])[None] < torch.tensor(part)[:, None]
        words = torch.randint(WORDS, real.shape, generator=generator_for(len(made), "words"))
        made.append({"input_ids": words * real, "attention_mask": real.long()})
    return made


@torch.no_grad()
def obvious(model: nn.Module, given: list[dict[str, Tensor]]) -> list[float]:
    scaled = copy.deepcopy(model)
    for parameter in scaled.parameters():
        parameter.mul_(1024.0)
    sums, count = [0.0] * 13, 0
    for batch in given:
        for words, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            alone = words[mask.bool()][None]
            f = model(input_ids=alone, output_hidden_states=True).hidden_states
            sf = scaled(input_ids=alone, output_hidden_states=True).hidden_states
            for layer, (a, b) in enumerate(zip(f, sf, strict=True)):
                sums[layer] += float(torch.cosine_similarity(a, b, dim=-1).sum())
            count += alone.shape[1]
    return [each / count for each in sums]


@torch.no_grad()
def forward(model: nn.Module, given: list[dict[str, Tensor]]) -> None:
    for batch in given:
        model(**batch)


def peaks(arguments: list[str]) -> dict[str, int]:
    """Bytes of each side beside the model, in a process of its own."""
    command = [sys.executable, __file__, "--peaks", *arguments]
    returning = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        command, env={**os.environ, **returning}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def print_peaks(model: nn.Module, given: list[dict[str, Tensor]]) -> None:
    sides = {"forward": forward, "ours": saturation, "obvious": obvious}
    for call in sides.values():
        call(model, given[-1:])  # what torch sets up once is nobody's
    print(json.dumps({name: peak(lambda f=call: f(model, given)) for name, call in sides.items()}))


def peak(call: Callable[[], object]) -> int:
    """Bytes that the process holds at most beyond what it held before (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high mark is now what is in use
    before = high_mark()
    call()
    return high_mark() - before


def high_mark() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    from transformers import BertConfig, BertModel

    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--text", type=Path, help="take lengths from this text, such as Brown")
    arguments.add_argument("--sentences", type=int, default=100)
    arguments.add_argument("--tokens", type=int, default=256, help="of a batch")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--peaks", action="store_true", help="only the memory, in this process")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    given = batches(lengths_of(chosen.text, chosen.sentences), chosen.tokens)
    if chosen.peaks:
        print_peaks(model, given)
        return
    saturation(model, given[-1:])  # what torch sets up once is nobody's
    best = [float("inf"), float("inf")]
    expected: list[float] = []
    for _ in range(chosen.rounds):
        best[0] = min(best[0], timed(lambda: saturation(model, given)))
        best[1] = min(best[1], timed(lambda: expected.extend(obvious(model, given))))
    found = saturation(model, given)
    pairs = zip(found.layers, expected, strict=False)
    apart = max(abs(level.cosine - other) for level, other in pairs)
    extra = peaks(sys.argv[1:])
    print(f"{found.sentences} sentences, {found.tokens} tokens, {len(given)} batches")
    print(f"ours {best[0]:.2f} s, obvious {best[1]:.2f} s of processor time, 1 thread")
    print(f"largest difference of a layer's cosine {apart:.1e}")
    told = ", ".join(f"{name} {taken / 2**20:.0f} MiB" for name, taken in extra.items())
    print(f"beside the model of {size / 2**20:.0f} MiB: {told}")
    print(
        json.dumps(
            {
                "bench": "saturation",
                "seconds": best[0],
                "obvious_seconds": best[1],
                "memory": extra["ours"] / size,
                "forward_memory": extra["forward"] / size,
                "difference": apart,
                "ratio": best[0] / best[1],
            }
        )
    )


if __name__ == "__main__":
    main()
