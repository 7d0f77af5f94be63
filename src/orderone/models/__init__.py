"""Reference transformers in the papers' letters; they know nothing of plans."""

from orderone.models.block import Block, Stack
from orderone.models.build import AnyTransformer, build
from orderone.models.config import (
    Config,
    EncoderDecoderConfig,
    LanguageConfig,
    TransformerConfig,
    VisionConfig,
    WordsConfig,
    parse_config,
    read_config,
)
from orderone.models.encoder_decoder import EncoderDecoderTransformer
from orderone.models.language import LanguageTransformer
from orderone.models.presets import PRESETS, preset
from orderone.models.transformer import Trace, Transformer
from orderone.models.vision import VisionTransformer

__all__ = [
    "PRESETS",
    "AnyTransformer",
    "Block",
    "Config",
    "EncoderDecoderConfig",
    "EncoderDecoderTransformer",
    "LanguageConfig",
    "LanguageTransformer",
    "Stack",
    "Trace",
    "Transformer",
    "TransformerConfig",
    "VisionConfig",
    "VisionTransformer",
    "WordsConfig",
    "build",
    "parse_config",
    "preset",
    "read_config",
]
