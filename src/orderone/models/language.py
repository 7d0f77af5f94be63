"""Language transformer, [DYZ23] §I.1: causal decoder-only, or bidirectional encoder."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orderone.models.attention import Context
from orderone.models.block import encoder_stack, layer_norm
from orderone.models.config import LanguageConfig, WordsConfig
from orderone.models.head import Head, TiedHead
from orderone.models.mask import mask
from orderone.models.stem import LanguageStem
from orderone.models.transformer import Trace, Transformer, initialize_


class LanguageTransformer(Transformer):
    """words → z^(1) → blocks → LN → head."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = LanguageStem(config)
        self.blocks = encoder_stack(config, config.block_xi)
        self.norm = layer_norm(config) if config.has_final_norm else nn.Identity()
        self.head = words_head(config)
        initialize_(self, std=config.init_std)
        silence_pad_(self.stem.word, config.pad)

    def forward(
        self, tokens: Int[Tensor, "b t"], real: Bool[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b t out"]:
        return self.read(self.blocks(self.stem(tokens), self.context(real)))

    def trace(self, tokens: Int[Tensor, "b t"], real: Bool[Tensor, "b t"] | None = None) -> Trace:
        """The same with every z and Ω."""
        hidden, attention = self.blocks.trace(self.stem(tokens), self.context(real))
        output = self.read(hidden[-1])
        return Trace(output=output, hidden=tuple(hidden), attention=tuple(attention))

    def context(self, real: Bool[Tensor, "b t"] | None) -> Context:
        return Context(mask=mask(real, causal=self.config.causal, future=self.config.mask))

    def read(self, z: Float[Tensor, "b t n"]) -> Float[Tensor, "b t out"]:
        """Outputs of the last z."""
        return words_out(self.head, self.norm(z), self.stem.word)


def words_head(config: WordsConfig) -> Head | TiedHead:
    """The head of a model of words."""
    N_rescale = config.output_multiplier
    if config.head_tied:
        return TiedHead(output_multiplier=N_rescale)
    return Head(config.n, config.outputs, bias=config.head_bias, output_multiplier=N_rescale)


def words_out(
    head: Head | TiedHead, s: Float[Tensor, "b t n"], word: nn.Embedding
) -> Float[Tensor, "b t out"]:
    """Outputs of the last s, through the word embedding where the head is tied to it."""
    return head(s, word.weight) if isinstance(head, TiedHead) else head(s)


@torch.no_grad()
def silence_pad_(word: nn.Embedding, pad: int | None) -> None:
    """The [pad] row of W^WE at zero, [DYZ23] footnote 48."""
    if pad is not None:
        word.weight[pad].zero_()
