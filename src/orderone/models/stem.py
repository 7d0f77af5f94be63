"""Stems: from words or pixels to z^(1), [DYZ23] eq. (1.6)–(1.9)."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ConfigError
from orderone.models.activation import activation
from orderone.models.block import layer_norm
from orderone.models.config import VisionConfig, WordsConfig


class Positions(nn.Module):
    """z_t = b^PE_t + (what is at t), with the layer norm of the stem where there is one."""

    def __init__(self, config: WordsConfig) -> None:
        super().__init__()
        self.position = nn.Embedding(config.T, config.n)
        self.norm = layer_norm(config) if config.stem_norm else None
        self.dropout = config.dropout

    def placed(self, words: Float[Tensor, "b t n"]) -> Float[Tensor, "b t n"]:
        t, T = words.shape[1], self.position.num_embeddings
        if t > T:
            raise ConfigError(
                f"a sequence of {t} tokens",
                expected=f"at most T = {T} positions",
                do="cut the sequence, or build the model with a larger T",
            )
        z = words + self.position.weight[:t]
        if self.norm is not None:
            z = self.norm(z)
        return functional.dropout(z, self.dropout, self.training)


class SideStem(Positions):
    """The stem of an encoder or decoder whose word embedding is shared with the other."""

    def forward(self, words: Float[Tensor, "b t n"]) -> Float[Tensor, "b t n"]:
        return self.placed(words)


class LanguageStem(Positions):
    """z_t = b^PE_t + W^WE_{word at t}, [DYZ23] eq. (1.9)."""

    def __init__(self, config: WordsConfig) -> None:
        super().__init__(config)
        self.word = nn.Embedding(config.n_vocab, config.n)

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t n"]:
        return self.placed(self.word(tokens))


class VisionStem(nn.Module):
    """z_t = b^PE_t + W^patch x_t, [DYZ23] eq. (1.6)–(1.7); a class token at t = 0, eq. (1.8).

    Convolutions first, their footnote 4: each 3×3 of stride 2 halves the image and doubles the
    channels, up to n; W^patch is then 1×1.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.size = (config.channels, config.image_size, config.image_size)
        self.position = nn.Embedding(config.T, config.n)
        self.dropout = config.dropout
        token = torch.empty(config.n) if config.stem == "class-token" else None
        self.class_token = None if token is None else nn.Parameter(token)
        self.sigma = activation(config.activation)
        widths = convolution_widths(config) if config.stem == "convolutions" else [config.channels]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel_size=3, stride=2, padding=1, bias=config.bias)
            for a, b in pairwise(widths)
        )
        left = config.patch >> len(self.convolutions)
        self.patch = nn.Conv2d(widths[-1], config.n, kernel_size=left, stride=left, bias=False)

    def forward(self, images: Float[Tensor, "b channels y x"]) -> Float[Tensor, "b t n"]:
        if images.shape[1:] != self.size:
            raise ConfigError(
                f"images of {'×'.join(map(str, images.shape[1:]))}",
                expected=f"{'×'.join(map(str, self.size))} (channels, height, width)",
                do="resize or crop them, or build the model for their size",
            )
        x = images
        for convolution in self.convolutions:
            x = self.sigma(convolution(x))
        z = self.patch(x).flatten(2).mT
        if self.class_token is not None:
            z = torch.cat([self.class_token.expand(len(z), 1, -1), z], dim=1)
        return functional.dropout(z + self.position.weight, self.dropout, self.training)


def convolution_widths(config: VisionConfig) -> list[int]:
    """Channels before and after each convolution: from the last to the first n, n/2, n/4, …"""
    halvings = config.patch.bit_length() - 1
    after = [max(1, config.n >> (halvings - 1 - i)) for i in range(halvings)]
    return [config.channels, *after]
