"""Heads: from s^(L−1) to the outputs, [DYZ23] eq. (1.22)–(1.24)."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """N_rescale · W^head s + b^head, [DYZ23] eq. (1.22)."""

    def __init__(self, n: int, n_out: int, *, bias: bool, output_multiplier: float) -> None:
        super().__init__()
        self.W = nn.Linear(n, n_out, bias=bias)
        self.output_multiplier = output_multiplier

    def forward(self, s: Float[Tensor, "*b n"]) -> Float[Tensor, "*b out"]:
        return self.W(rescaled(s, self.output_multiplier))


class TiedHead(nn.Module):
    """N_rescale · (W^WE)ᵀ s, [DYZ23] eq. (1.24): no parameter of its own."""

    def __init__(self, *, output_multiplier: float) -> None:
        super().__init__()
        self.output_multiplier = output_multiplier

    def forward(
        self, s: Float[Tensor, "b t n"], word: Float[Tensor, "v n"]
    ) -> Float[Tensor, "b t v"]:
        return functional.linear(rescaled(s, self.output_multiplier), word)


def rescaled(s: Float[Tensor, "*b n"], N_rescale: float) -> Float[Tensor, "*b n"]:
    """N_rescale · s: on the n features rather than on the many more outputs."""
    return s if N_rescale == 1.0 else N_rescale * s
