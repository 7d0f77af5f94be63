"""BART-like encoder–decoder, [DYZ23] §II.2.B: second positions, three more layer norms."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orderone.models.attention import Attention, Context, MixedAttention
from orderone.models.block import Block, Stack, encoder_stack, layer_norm
from orderone.models.config import EncoderDecoderConfig, WordsConfig
from orderone.models.language import silence_pad_, words_head, words_out
from orderone.models.mask import mask
from orderone.models.mlp import MLP
from orderone.models.stem import SideStem
from orderone.models.transformer import Trace, Transformer, initialize_


class Side(nn.Module):
    """Positions, blocks and last layer norm of the encoder or of the decoder."""

    def __init__(self, config: WordsConfig, blocks: Stack) -> None:
        super().__init__()
        self.stem = SideStem(config)
        self.blocks = blocks
        self.norm = layer_norm(config) if config.has_final_norm else nn.Identity()

    def forward(self, words: Float[Tensor, "b t n"], context: Context) -> Float[Tensor, "b t n"]:
        return self.norm(self.blocks(self.stem(words), context))

    def trace(
        self, words: Float[Tensor, "b t n"], context: Context
    ) -> tuple[Float[Tensor, "b t n"], list[Tensor], list[Tensor]]:
        """The last s, every z, every Ω."""
        hidden, attention = self.blocks.trace(self.stem(words), context)
        return self.norm(hidden[-1]), hidden, attention


class EncoderDecoderTransformer(Transformer):
    """source → encoder → s̄; target → decoder, which looks at s̄ → head. One W^WE for all three."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.n_vocab, config.n)
        split = 2 * config.encoders
        self.encoder = Side(config, encoder_stack(config, config.block_xi[:split]))
        self.decoder = Side(config, decoder_stack(config, config.block_xi[split:]))
        self.head = words_head(config)
        initialize_(self, std=config.init_std)
        silence_pad_(self.word, config.pad)

    def forward(
        self,
        source: Int[Tensor, "b k"],
        target: Int[Tensor, "b t"],
        source_real: Bool[Tensor, "b k"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t out"]:
        seen = Context(mask=mask(source_real, causal=False))
        memory = self.encoder(self.word(source), seen)
        s = self.decoder(self.word(target), decoder_context(memory, seen, target_real))
        return words_out(self.head, s, self.word)

    def trace(
        self,
        source: Int[Tensor, "b k"],
        target: Int[Tensor, "b t"],
        source_real: Bool[Tensor, "b k"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
    ) -> Trace:
        """The same with every z and Ω: the encoder's, then the decoder's."""
        seen = Context(mask=mask(source_real, causal=False))
        memory, z_in, Omega_in = self.encoder.trace(self.word(source), seen)
        context = decoder_context(memory, seen, target_real)
        s, z_out, Omega_out = self.decoder.trace(self.word(target), context)
        output = words_out(self.head, s, self.word)
        return Trace(output=output, hidden=(*z_in, *z_out), attention=(*Omega_in, *Omega_out))


def decoder_stack(config: EncoderDecoderConfig, xi: tuple[float, ...]) -> Stack:
    """Triplets of causal attention, mixed attention and MLP, a ξ for each block."""
    kinds = (Attention, MixedAttention, MLP)
    paths = [kind(config) for _ in range(config.decoders) for kind in kinds]
    return Stack(Block(config, path, xi=x) for path, x in zip(paths, xi, strict=True))


def decoder_context(
    memory: Float[Tensor, "b k n"], seen: Context, target_real: Bool[Tensor, "b t"] | None
) -> Context:
    """The decoder sees its past, and all real tokens of the encoder's output."""
    return Context(mask=mask(target_real, causal=True), memory=memory, memory_mask=seen.mask)
