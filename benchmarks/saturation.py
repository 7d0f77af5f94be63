"""Saturation of a BERT-base-shaped model on 100 sentences against the obvious code.

The obvious code runs one sentence at a time through the model and through a copy of it whose
weights are all scaled. ``ratio`` is our time over its time, its copy made once and not counted;
``memory`` is what we hold beside the model at most, in parts of the model's size.
"""

import argparse
import copy
import gc
import json
import resource
import threading
import time
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
def obvious(model: nn.Module, scaled: nn.Module, given: list[dict[str, Tensor]]) -> list[float]:
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


class Peak:
    """The largest resident memory while it runs, looked at every few milliseconds."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self.start = self.most = resident()
        self.running = True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while self.running:
            self.most = max(self.most, resident())
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self.running = False
        self.thread.join()

    @property
    def extra(self) -> int:
        return self.most - self.start


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def timed(call: object) -> float:
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
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    given = batches(lengths_of(chosen.text, chosen.sentences), chosen.tokens)
    saturation(model, given[-1:])  # what torch sets up once is nobody's
    with Peak() as ours:
        found = saturation(model, given)
    with torch.no_grad(), Peak() as forward:
        for batch in given:
            model(**batch)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(1024.0)
    best = [float("inf"), float("inf")]
    expected: list[float] = []
    for _ in range(chosen.rounds):
        best[0] = min(best[0], timed(lambda: saturation(model, given)))
        best[1] = min(best[1], timed(lambda: expected.extend(obvious(model, scaled, given))))
    pairs = zip(found.layers, expected, strict=False)
    apart = max(abs(level.cosine - other) for level, other in pairs)
    print(f"{found.sentences} sentences, {found.tokens} tokens, {len(given)} batches")
    print(f"ours {best[0]:.2f} s, obvious {best[1]:.2f} s of processor time, 1 thread")
    print(f"largest difference of a layer's cosine {apart:.1e}")
    print(
        f"beside the model: {ours.extra / 2**20:.0f} MiB, a plain forward pass "
        f"{forward.extra / 2**20:.0f} MiB, a copy {size / 2**20:.0f} MiB"
    )
    print(
        json.dumps(
            {
                "bench": "saturation",
                "seconds": best[0],
                "obvious_seconds": best[1],
                "memory": ours.extra / size,
                "difference": apart,
                "ratio": best[0] / best[1],
            }
        )
    )


if __name__ == "__main__":
    main()
