"""Parameters of the base models of [MRGSS21] Fig. 2, counted on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orderone.core.errors import MissingPackageError
from orderone.scaling.hugging import model_class

_BASE: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1},
    "t5": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "xlnet": {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072},
}
"""What differs from transformers' defaults."""


def parameters_of(kinds: Sequence[str]) -> dict[str, int]:
    """Parameters of each, head included; tied ones once."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError("transformers", needed_for="models of Fig. 2") from error
    found: dict[str, int] = {}
    for kind in kinds:
        config: Any = transformers.AutoConfig.for_model(kind, **_BASE[kind])
        with torch.device("meta"):
            model = model_class(config)(config)
        found[kind] = sum(each.numel() for each in model.parameters())
    return found
