"""Multi-headed attention, [DYZ23] eq. (1.13)–(1.19), and mixed attention, eq. (2.2)–(2.4)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from orderone.models.config import TransformerConfig
from orderone.models.mask import Mask, attention_weights


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a residual path may look at beside its own signal."""

    mask: Mask
    memory: Float[Tensor, "b k n"] | None = None
    """s̄, the encoder's layer-normalised output."""
    memory_mask: Mask | None = None


class Attention(nn.Module):
    """r_t = Σ_h U^h Σ_t' Ω^h_tt' V^h s_t', Ω = softmax(C^−p (Q^h s_t)·(K^h s_t')).

    Rows hC … (h+1)C of ``Q.weight``, ``K.weight`` and ``V.weight``, and the same columns of
    ``U.weight``, belong to head h.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.H = config.H
        self.scale = config.C**-config.attention_power
        self.dropout = config.attention_dropout
        self.Q = nn.Linear(config.n, config.n, bias=config.bias)
        self.K = nn.Linear(config.n, config.n, bias=config.bias)
        self.V = nn.Linear(config.n, config.n, bias=config.bias)
        self.U = nn.Linear(config.n, config.n, bias=config.bias)

    def sees(
        self, s: Float[Tensor, "b q n"], context: Context
    ) -> tuple[Float[Tensor, "b k n"], Mask]:
        """The signal that keys and values are made of, and which of it is legal."""
        return s, context.mask

    def forward(self, s: Float[Tensor, "b q n"], context: Context) -> Float[Tensor, "b q n"]:
        """r through the fast kernels, which never form Ω."""
        seen, mask = self.sees(s, context)
        if mask.causal and mask.future == "zero":
            return self.trace(s, context)[0]
        legal = mask.keys
        if legal is not None and mask.empty is not None:
            legal = legal | mask.empty  # no kernel is asked for the softmax of nothing
        heads = functional.scaled_dot_product_attention(
            self.split(self.Q(s)),
            self.split(self.K(seen)),
            self.split(self.V(seen)),
            attn_mask=legal,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask.causal and legal is None,
            scale=self.scale,
        )
        if mask.empty is not None:
            heads = heads.masked_fill(mask.empty, 0.0)
        return self.U(heads.transpose(1, 2).flatten(2))

    def trace(
        self, s: Float[Tensor, "b q n"], context: Context
    ) -> tuple[Float[Tensor, "b q n"], Float[Tensor, "b h q k"]]:
        """r and Ω, equation by equation."""
        seen, mask = self.sees(s, context)
        q, k, v = self.split(self.Q(s)), self.split(self.K(seen)), self.split(self.V(seen))
        Omega = attention_weights(self.scale * (q @ k.mT), mask)
        kept = functional.dropout(Omega, self.dropout, self.training)
        return self.U((kept @ v).transpose(1, 2).flatten(2)), Omega

    def split(self, x: Float[Tensor, "b t n"]) -> Float[Tensor, "b h t c"]:
        return x.unflatten(-1, (self.H, -1)).transpose(1, 2)


class MixedAttention(Attention):
    """Keys and values from the encoder's output s̄, [DYZ23] eq. (2.2)–(2.4)."""

    def sees(
        self, s: Float[Tensor, "b q n"], context: Context
    ) -> tuple[Float[Tensor, "b k n"], Mask]:
        assert context.memory is not None
        assert context.memory_mask is not None
        return context.memory, context.memory_mask
