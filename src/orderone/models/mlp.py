"""Multilayer perceptron, [DYZ23] eq. (1.20)–(1.21)."""

from jaxtyping import Float
from torch import Tensor, nn

from orderone.models.activation import activation
from orderone.models.attention import Context
from orderone.models.config import TransformerConfig


class MLP(nn.Module):
    """r = X σ(W s)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sigma = activation(config.activation)
        self.W = nn.Linear(config.n, config.mlp_width, bias=config.bias)
        self.X = nn.Linear(config.mlp_width, config.n, bias=config.bias)

    def forward(self, s: Float[Tensor, "b t n"], context: Context) -> Float[Tensor, "b t n"]:
        """Every token by itself: ``context`` is not looked at."""
        return self.X(self.sigma(self.W(s)))

    def trace(
        self, s: Float[Tensor, "b t n"], context: Context
    ) -> tuple[Float[Tensor, "b t n"], None]:
        """r, and no attention weights."""
        return self(s, context), None
