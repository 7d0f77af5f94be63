"""Attention weights Ω of any model, handed over as each attention runs and kept nowhere.

Seen where scores enter a softmax, and recomputed from queries and keys where a fused kernel never
forms them: eager and fused attention of transformers, timm's, torch's and our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.core.parameter_names import clean_name

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)

Keep = Callable[[str, Float[Tensor, "b h q k"]], None]
"""What is told the path of the module that attends, and its Ω."""


@contextmanager
def attention_weights(model: nn.Module, keep: Keep) -> Generator[None]:
    """``keep`` gets Ω of every attention of each forward pass within, in the order they run."""
    running = [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leave(*_: object) -> None:
        running.pop()

    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as undo:
        # torch's own layers would otherwise run as one kernel that no mode sees inside.
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(enter(clean_name(name)))
            after = module.register_forward_hook(leave, always_call=True)
            undo.callback(before.remove)
            undo.callback(after.remove)
        undo.enter_context(_WeightsMode(lambda Omega: keep(running[-1], Omega)))
        yield


class _WeightsMode(TorchFunctionMode):
    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        output = func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            self._keep(_fused(*args, **kwargs))
        elif func in _SOFTMAX:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            # (batch, heads, queries, keys): no other softmax of a network has this shape.
            if output.ndim == 4 and dim in (-1, 3):
                self._keep(output.detach())
        return output

    def _multi_head(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``nn.MultiheadAttention``: asked for its weights, head by head."""
        wanted = {"need_weights": True, "average_attn_weights": False}
        output, Omega = functional.multi_head_attention_forward(*args, **{**kwargs, **wanted})
        assert Omega is not None
        self._keep(Omega.detach().reshape(-1, *Omega.shape[-3:]))
        if not kwargs.get("need_weights", True):
            return output, None
        averaged = kwargs.get("average_attn_weights", True)
        return output, Omega.mean(dim=-3) if averaged else Omega


@torch.no_grad()
def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "b h q k"]:
    """Ω of ``scaled_dot_product_attention``'s arguments, in float32 at least, as kernels do."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype), key.to(dtype)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = (1 / math.sqrt(query.shape[-1]) if scale is None else scale) * (query @ key.mT)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hidden else scores + attn_mask
    # A query without a legal key attends to nothing.
    empty = (scores == -math.inf).all(dim=-1, keepdim=True)
    Omega = scores.softmax(dim=-1).masked_fill(empty, 0.0)
    return Omega if Omega.ndim == 4 else Omega.reshape(-1, *Omega.shape[-3:])
