"""Vision transformer, [DYZ23] §I.1: patches, bidirectional encoders, a linear head."""

from jaxtyping import Float
from torch import Tensor, nn

from orderone.models.attention import Context
from orderone.models.block import encoder_stack, layer_norm
from orderone.models.config import VisionConfig
from orderone.models.head import Head
from orderone.models.mask import mask
from orderone.models.stem import VisionStem
from orderone.models.transformer import Trace, Transformer, initialize_


class VisionTransformer(Transformer):
    """images → z^(1) → blocks → LN → head."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = VisionStem(config)
        self.blocks = encoder_stack(config, config.block_xi)
        self.norm = layer_norm(config) if config.has_final_norm else nn.Identity()
        self.head = Head(
            config.n,
            config.n_out,
            bias=config.head_bias,
            output_multiplier=config.output_multiplier,
        )
        initialize_(self, std=config.init_std)

    def forward(self, images: Float[Tensor, "b channels y x"]) -> Float[Tensor, "b *t out"]:
        return self.read(self.blocks(self.stem(images), self.context()))

    def trace(self, images: Float[Tensor, "b channels y x"]) -> Trace:
        """The same with every z and Ω."""
        hidden, attention = self.blocks.trace(self.stem(images), self.context())
        output = self.read(hidden[-1])
        return Trace(output=output, hidden=tuple(hidden), attention=tuple(attention))

    def context(self) -> Context:
        return Context(mask=mask(None, causal=False))

    def read(self, z: Float[Tensor, "b t n"]) -> Float[Tensor, "b *t out"]:
        """Outputs of the last z: of each token, of their mean, or of the class token.

        Differs from [DYZ23] eq. (1.23): averages s, not the outputs, which is the same and cheaper.
        """
        s = self.norm(z)
        if self.config.head == "mean":
            s = s.mean(dim=1)
        elif self.config.head == "class-token":
            s = s[:, 0]
        return self.head(s)
