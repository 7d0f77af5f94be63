"""‖g‖ as the backward pass left it and as the optimizer uses it: before and after clipping.

Clipping happens in between, unseen: before it, gradients are read when the backward pass has
ended (after DDP has averaged them), after it when the optimizer steps. With accumulation the last
backward pass before the step counts. A gradient scaler's scale is taken out of both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from orderone.probes.shards import local
from orderone.probes.step import pieces, squares

_FRAMES = 24  # between an optimizer's hook and the scaler that called it, wrappers included


class GradientTap:
    """Squared norms of the parameters' gradients at the end of a backward pass."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self._hooks: list[RemovableHandle] = []
        self._queued = False
        self._seen: Tensor | None = None

    def arm(self) -> None:
        """Read gradients from now on, at the end of every backward pass."""
        if not self._hooks:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._queue)
                for parameter in self.parameters
                if parameter.requires_grad and parameter.is_leaf
            ]

    def disarm(self) -> None:
        """Leave gradients alone, and forget what was read."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._seen, self._queued = [], None, False

    def before_and_after(self, optimizer: Optimizer) -> Float64[Tensor, "2 tensors"]:
        """‖g‖² before and after clipping, by parameter, while the optimizer steps.

        NaN before where no backward pass was seen, and both where nothing has a gradient.
        """
        scaler = scaler_on_stack()
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        # Read again even where nothing seems to have been written: ``grad.data.mul_`` leaves no
        # trace in a tensor's version, and neither does unscaling.
        after = self._squares()
        before, self._seen = self._seen, None
        before = torch.full_like(after, float("nan")) if before is None else before
        # An optimizer that is handed the scale has gradients that still carry it.
        carried = getattr(optimizer, "grad_scale", None)
        after = after if carried is None else after / carried.to(after.device).double().square()
        return torch.stack((before / scale**2, after))

    def _queue(self, _: Tensor) -> None:
        """Ask to be called when the backward pass has ended, and others that asked before too."""
        if not self._queued:
            self._queued = True
            # DDP asks as late as its last bucket, and FSDP2 may end its work in its own callback:
            # asking once more from inside puts us behind them.
            _at_end_of_backward(lambda: _at_end_of_backward(self._read))

    def _read(self) -> None:
        if self._queued:
            self._queued = False
            self._seen = self._squares()

    def _squares(self) -> Float64[Tensor, "tensors"]:
        gradients = [_dense(p) for p in self.parameters]
        if all(p.grad is None for p in self.parameters):
            return torch.full((len(gradients),), float("nan"), dtype=torch.float64)
        return squares(pieces(gradients), len(gradients))


def scaler_on_stack() -> GradScaler | None:
    """The gradient scaler that is stepping the optimizer just now.

    It tells nobody: neither the optimizer nor the gradients know that they were scaled.
    """
    frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(_FRAMES):
        if frame is None:
            return None
        caller = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(caller, GradScaler):
            return caller if caller.is_enabled() else None
        frame = frame.f_back
    return None


def _at_end_of_backward(call: Any) -> None:
    # The engine's own list of what to do at the end; DDP and FSDP2 use no other.
    Variable._execution_engine.queue_callback(call)  # pyright: ignore


def _dense(parameter: Tensor) -> Tensor:
    """The gradient's own elements; none where there is no gradient."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.float32, device=parameter.device)
    if gradient.is_sparse:  # an embedding's: rows that were looked up, repeated ones summed
        return gradient.detach().coalesce().values()
    return local(gradient, like=parameter)
