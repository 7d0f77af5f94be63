"""One residual path with its layer norm and its skip: a block ℓ of [DYZ23] eq. (1.2)–(1.5)."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from orderone.models.attention import Attention, Context
from orderone.models.config import TransformerConfig
from orderone.models.mlp import MLP


class Block(nn.Module):
    """z' = ξ z + R(LN(z)) (pre), ξ z + LN(R(z)) (branch), LN(ξ z + R(z)) (post).

    *pre* is [DYZ23] eq. (1.2)–(1.5), *branch* what [MRGSS21] calls pre-norm, *post* the
    original transformer.
    """

    def __init__(self, config: TransformerConfig, path: Attention | MLP, *, xi: float) -> None:
        super().__init__()
        self.path = path
        self.norm = layer_norm(config)
        self.placement = config.placement
        self.xi = xi
        self.dropout = config.dropout

    def forward(self, z: Float[Tensor, "b t n"], context: Context) -> Float[Tensor, "b t n"]:
        return self.join(z, self.path(self.enter(z), context))

    def trace(
        self, z: Float[Tensor, "b t n"], context: Context
    ) -> tuple[Float[Tensor, "b t n"], Float[Tensor, "b h t k"] | None]:
        """z', and the attention weights where the path has any."""
        r, Omega = self.path.trace(self.enter(z), context)
        return self.join(z, r), Omega

    def enter(self, z: Float[Tensor, "b t n"]) -> Float[Tensor, "b t n"]:
        """What the residual path is given."""
        return self.norm(z) if self.placement == "pre" else z

    def join(self, z: Float[Tensor, "b t n"], r: Float[Tensor, "b t n"]) -> Float[Tensor, "b t n"]:
        """Residual path and skip together."""
        if self.placement == "branch":
            r = self.norm(r)
        r = functional.dropout(r, self.dropout, self.training)
        z = r + z if self.xi == 1.0 else r + self.xi * z
        return self.norm(z) if self.placement == "post" else z


class Stack(nn.ModuleList):
    """Blocks in a row; recomputed in the backward pass where ``gradient_checkpointing``."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__(blocks)
        self.gradient_checkpointing = False

    def forward(self, z: Float[Tensor, "b t n"], context: Context) -> Float[Tensor, "b t n"]:
        recompute = self.gradient_checkpointing and torch.is_grad_enabled()
        for block in self:
            z = (
                checkpoint(block, z, context, use_reentrant=False)
                if recompute
                else block(z, context)
            )
        return z

    def trace(
        self, z: Float[Tensor, "b t n"], context: Context
    ) -> tuple[list[Tensor], list[Tensor]]:
        """z before the first and after every block, and the attention weights."""
        hidden, attention = [z], list[Tensor]()
        for block in self:
            assert isinstance(block, Block)
            z, Omega = block.trace(z, context)
            hidden.append(z)
            if Omega is not None:
                attention.append(Omega)
        return hidden, attention


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
    """LN of [DYZ23] eq. (1.10)–(1.11)."""
    return nn.LayerNorm(config.n, eps=config.epsilon, elementwise_affine=config.affine)


def encoder_stack(config: TransformerConfig, xi: tuple[float, ...]) -> Stack:
    """Pairs of attention and MLP, a ξ for each block."""
    paths = [kind(config) for _ in range(len(xi) // 2) for kind in (Attention, MLP)]
    return Stack(Block(config, path, xi=x) for path, x in zip(paths, xi, strict=True))
