"""The papers' own models by name."""

from typing import Any

from orderone.core.errors import ConfigError
from orderone.models.config import Config, read_config

# [MRGSS21] App. A; untied head with a bias and no layer norm after the stack, as in their code.
# T: Penn's longest sentence and its end. Vocabulary: Penn's 10,000 with [pad] and [start].
_SMALL_LM: dict[str, Any] = {
    "kind": "language",
    "n": 768,
    "H": 12,
    "encoders": 12,
    "d_ff": 512,
    "activation": "relu",
    "bias": True,
    "affine": True,
    "T": 83,
    "n_vocab": 10_002,
    "head_tied": False,
    "head_bias": True,
    "init_std": None,
}

# [DYZ23] §II.2.B, D.
_BART: dict[str, Any] = {
    "kind": "encoder-decoder",
    "n_vocab": 50_265,
    "T": 514,
    "pad": 1,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "init_std": 0.02,
}

PRESETS: dict[str, dict[str, Any]] = {
    "vit-b16": {"kind": "vision", "n": 768, "H": 12, "encoders": 12},  # [DYZ23] §II.1
    "bart-large": {**_BART, "n": 1024, "H": 16, "encoders": 12, "decoders": 12},
    "r2c2": {**_BART, "n": 2048, "H": 32, "encoders": 22, "decoders": 22},
    "small-lm-branch": {**_SMALL_LM, "placement": "branch"},
    "small-lm-post": {**_SMALL_LM, "placement": "post"},
}


def preset(name: str, **overrides: Any) -> Config:
    """The configuration of that name, with some of its settings replaced."""
    if name not in PRESETS:
        raise ConfigError(
            f"preset '{name}'", expected=f"one of {', '.join(PRESETS)}", do="choose one"
        )
    return read_config(PRESETS[name]).replace(**overrides)
