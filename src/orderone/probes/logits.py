"""Attention logits Ω̃ of any model: seen where they enter a softmax, or where a fused kernel would.

[DYZ23] eq. (1.16): Ω̃_tt' = q_t·k_t' / √C. Fused kernels never form them, so they are formed here
from the queries and keys that the kernel is handed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_ILLEGAL = -1e4
"""Masks are −∞ or a type's lowest number, −65504 of float16; no logit comes near."""

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


class LogitsMode(TorchFunctionMode):
    """While active, ``keep`` gets the legal logits of every attention that runs, as one vector."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._keep(_fused(*args, **kwargs))
        elif func is functional.multi_head_attention_forward:
            self._keep(_multi_head(*args, **kwargs))
        elif func in _SOFTMAX:
            scores = args[0] if args else kwargs["input"]
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            # (batch, heads, queries, keys): no other softmax of a network has this shape.
            if scores.ndim == 4 and dim in (-1, 3):
                self._keep(_legal(scores))
        return func(*args, **kwargs)


def _legal(scores: Float[Tensor, "*_"]) -> Float[Tensor, "legal"]:
    return scores.detach()[scores > _ILLEGAL]


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
) -> Float[Tensor, "legal"]:
    """Ω̃ of ``scaled_dot_product_attention``'s arguments."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = (1 / math.sqrt(query.shape[-1]) if scale is None else scale) * (query @ key.mT)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf)
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    return _legal(scores)


@torch.no_grad()
def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    *_: Any,
    **settings: Any,
) -> Float[Tensor, "legal"]:
    """Ω̃ of ``nn.MultiheadAttention``, which hands its weights to one function; (time, batch, n)."""
    if in_proj_weight is not None and not settings.get("use_separate_proj_weight"):
        parts = in_proj_weight.chunk(3)[:2]
    else:
        parts = settings["q_proj_weight"], settings["k_proj_weight"]
    b_Q, b_K = (None, None) if in_proj_bias is None else in_proj_bias.chunk(3)[:2]
    q, k = functional.linear(query, parts[0], b_Q), functional.linear(key, parts[1], b_K)
    heads = [x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for x in (q, k)]
    mask = settings.get("attn_mask")
    if mask is not None:
        # Here True means hidden, and a mask of each head lies along the batch.
        mask = ~mask if mask.dtype == torch.bool else mask
        if mask.ndim == 3:
            mask = mask.unflatten(0, (-1, num_heads))
    return _fused(heads[0], heads[1], value, attn_mask=mask)
