"""From a configuration to a model."""

import torch

from orderone.models.config import Config, EncoderDecoderConfig, VisionConfig
from orderone.models.encoder_decoder import EncoderDecoderTransformer
from orderone.models.language import LanguageTransformer
from orderone.models.vision import VisionTransformer

AnyTransformer = VisionTransformer | LanguageTransformer | EncoderDecoderTransformer


def build(
    config: Config, *, device: torch.device | str | None = None, seed: int | None = None
) -> AnyTransformer:
    """The model of ``config``; on ``device="meta"`` it has shapes and no memory.

    Its weights depend on ``seed`` alone where that is given, and torch's generators are left as
    they were; without, they are drawn from torch's generators.
    """
    where = torch.get_default_device() if device is None else torch.device(device)
    if seed is None:
        return _build(config, where)
    accelerated = [where] if where.type not in ("cpu", "meta") else []
    kind = where.type if accelerated else "cuda"
    with torch.random.fork_rng(devices=accelerated, device_type=kind):
        torch.manual_seed(seed)
        return _build(config, where)


def _build(config: Config, device: torch.device) -> AnyTransformer:
    with device:
        if isinstance(config, VisionConfig):
            return VisionTransformer(config)
        if isinstance(config, EncoderDecoderConfig):
            return EncoderDecoderTransformer(config)
        return LanguageTransformer(config)
