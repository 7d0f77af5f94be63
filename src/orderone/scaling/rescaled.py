"""What a model multiplies a tensor by before it uses it, beside what the theory has.

Gemma and BART-like models may multiply a word's embedding by √n; T5 and GPT-Neo do not divide the
scores by √C, which is √C times [DYZ23] eq. (1.16) and can be put down to Q. The rule is about the
product of the two, so that the tensor itself starts and moves by so much less.
"""

from __future__ import annotations

import math

from torch import nn

_UNDIVIDED = ("GPTNeoSelfAttention",)
"""Attention that divides by nothing and has no setting to say so."""


def embedding_scale(owner: nn.Module) -> float:
    """Of an embedding: its own multiplier, 1 where it has none."""
    scale = getattr(owner, "scalar_embed_scale", getattr(owner, "embed_scale", None))
    return float(scale) if isinstance(scale, float | int) else 1.0


def score_scale(attention: nn.Module) -> float:
    """Of Q: √C where the scores are not divided by anything, else 1.

    Other divisors, as of Granite, are a choice of how attention should scale and are left alone.
    """
    undivided = getattr(attention, "scaling", None) == 1.0
    if not undivided and type(attention).__name__ not in _UNDIVIDED:
        return 1.0
    for name in ("key_value_proj_dim", "head_dim"):
        channels = getattr(attention, name, None)
        if isinstance(channels, int):
            return math.sqrt(channels)
    return 1.0
