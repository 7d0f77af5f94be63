"""What the three kinds of model have in common: tracing, checkpointing, initialisation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orderone.models.block import Stack


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A forward pass, taken along the explicit path.

    An encoder–decoder lists its encoder first, then its decoder.
    """

    output: Tensor
    hidden: tuple[Float[Tensor, "b _ n"], ...]
    """z^(1) of the stem, and z after every block."""
    attention: tuple[Float[Tensor, "b h _ _"], ...]
    """Ω of every attention block, before dropout."""


class Transformer(nn.Module):
    """A reference transformer; ``gradient_checkpointing = True`` recomputes each block backward."""

    @property
    def gradient_checkpointing(self) -> bool:
        return any(stack.gradient_checkpointing for stack in self.stacks())

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        for stack in self.stacks():
            stack.gradient_checkpointing = on

    def stacks(self) -> list[Stack]:
        return [module for module in self.modules() if isinstance(module, Stack)]


@torch.no_grad()
def initialize_(model: nn.Module, *, std: float | None) -> None:
    """Every weight normal with one deviation, biases zero: the standard runs of [DYZ23] §II.2.

    None keeps PyTorch's defaults, as [MRGSS21] App. A.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d) and std is not None:
            nn.init.normal_(module.weight, std=std)
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                nn.init.zeros_(bias)
        token = getattr(module, "class_token", None)
        if isinstance(token, nn.Parameter):
            # PyTorch has no default for a bare vector; its embeddings have deviation 1.
            nn.init.normal_(token, std=1.0 if std is None else std)
