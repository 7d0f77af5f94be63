"""What is expected of a model of transformers, and the sizes that they are all built at.

n 48, 4 heads (of 12, or of 10 where a model lets us choose, so that q's width is not n), 2 key
heads, an MLP of 80, 97 words, 24 positions: no two widths of one model are equal by accident.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import nn

Expected = dict[str, tuple[str, int, int]]
"""(group, fan-in, fan-out) by name."""
BERT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "vocab_size": 97,
    "max_position_embeddings": 24,
}
LM_HEAD: Expected = {"lm_head.weight": ("head", 48, 97)}


@dataclass(frozen=True)
class Family:
    """A model, what is expected of it, and its heads' parameters."""

    model: str
    config: str
    settings: dict[str, Any]
    expected: Expected
    tied: str | None = None
    heads: tuple[str, ...] = ()
    n: int = 48
    zero_rows: dict[str, int] = field(default_factory=dict[str, int])


def under(prefix: str, expected: Expected) -> Expected:
    return {f"{prefix}.{name}": fans for name, fans in expected.items()}


def made(family: Family, device: str = "meta") -> nn.Module:
    settings = dict(family.settings)
    tied = settings.pop("tie_word_embeddings", None)
    config = getattr(hf, family.config)(**settings)
    if tied is not None:
        config.tie_word_embeddings = tied  # as an argument, T5 takes it for another setting
    with torch.device(device):
        return getattr(hf, family.model)(config)
