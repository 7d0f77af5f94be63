"""Forward + backward of our 12-layer, 768-wide language model against transformers' GPT-2.

Same shape, vocabulary, batch, activation and loss; no dropout; both through the fast attention
kernels; one thread; interleaved. ratio = the median over rounds of their CPU time / ours: at
least 1.0.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.models import LanguageConfig, build


def ours(n_vocab: int, T: int) -> nn.Module:
    return build(
        LanguageConfig(
            n=768,
            H=12,
            encoders=12,
            n_vocab=n_vocab,
            T=T,
            activation="gelu-tanh",
            bias=True,
            affine=True,
        ),
        seed=0,
    )


def theirs(n_vocab: int, T: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config: Any = GPT2Config(
        vocab_size=n_vocab, n_positions=T, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    config._attn_implementation = "sdpa"
    config.use_cache = False
    return GPT2LMHeadModel(config)


def seconds(model: nn.Module, logits: Callable[[Any], Tensor], tokens: Tensor) -> float:
    """CPU time of one forward and backward pass."""
    model.zero_grad(set_to_none=True)
    start = time.process_time()
    out = logits(model(tokens))
    functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return time.process_time() - start


def measured(sides: list[Any], tokens: Tensor, *, first: int) -> list[float]:
    """One round, ours then theirs in the answer; who runs first alternates between rounds."""
    taken = [0.0, 0.0]
    for i in (first, 1 - first):
        taken[i] = seconds(*sides[i], tokens)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50_257)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens = torch.randint(chosen.vocabulary, (chosen.batch, chosen.tokens))
    sides = [
        (ours(chosen.vocabulary, chosen.tokens), lambda out: out),
        (theirs(chosen.vocabulary, chosen.tokens), lambda out: out.logits),
    ]
    counts = [sum(p.numel() for p in model.parameters()) for model, _ in sides]
    assert counts[0] == counts[1], counts
    rounds = [measured(sides, tokens, first=i % 2) for i in range(chosen.rounds + 1)][1:]
    our_s, their_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(their / our for our, their in rounds)
    print(f"{counts[0]:,} parameters, {tokens.numel()} tokens, one thread")
    print(f"ours     {our_s:.3f} s   {tokens.numel() / our_s:,.0f} tokens/s")
    print(f"GPT-2    {their_s:.3f} s   {tokens.numel() / their_s:,.0f} tokens/s")
    print(
        json.dumps(
            {
                "bench": "models",
                "ours_s": round(our_s, 4),
                "theirs_s": round(their_s, 4),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "ratio": round(statistics.median(ratios), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
