"""The reference: the whole Jacobian from torch.func, and its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, jacrev

Run = Callable[[nn.Module], Tensor]


def jacobian(model: nn.Module, run: Run) -> dict[str, Tensor]:
    """∂f_a/∂θ as (outputs, elements) by parameter; ``run(model)`` is all outputs of all samples."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return run(self.model)

    bare = Bare()

    def f(given: dict[str, Any]) -> Tensor:
        named = {f"model.{name}": value for name, value in given.items()}
        return functional_call(bare, named, (), tie_weights=True).flatten()

    model.eval()
    found = jacrev(f)(parameters)
    return {name: J.reshape(len(J), -1).detach() for name, J in found.items()}


def kernels(J: dict[str, Tensor]) -> dict[str, Tensor]:
    """⟨∂f_a/∂θ_p, ∂f_b/∂θ_p⟩ of every parameter p."""
    return {name: each.double() @ each.double().mT for name, each in J.items()}


def averaged(K: Tensor, n_out: int) -> Tensor:
    """The trace over output indices divided by their number."""
    rows = len(K) // n_out
    return K.view(rows, n_out, rows, n_out).diagonal(dim1=1, dim2=3).mean(-1)
