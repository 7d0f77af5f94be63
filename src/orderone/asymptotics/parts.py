"""Operations that PyTorch itself writes with others: what leads them is what leads their parts."""

from collections.abc import Callable
from typing import Any

import torch

aten: Any = torch.ops.aten

PACKETS: frozenset[Any] = frozenset(
    {
        aten._prelu_kernel,
        aten._weight_norm_interface,
        aten.addcdiv,
        aten.binary_cross_entropy_with_logits,
        aten.channel_shuffle,
        aten.glu,
        aten.hardshrink,
        aten.hardtanh,
        aten.huber_loss,
        aten.index_add,
        aten.index_copy,
        aten.index_fill,
        aten.lerp,
        aten.log_sigmoid_forward,
        aten.logaddexp,
        aten.logsumexp,
        aten.mse_loss,
        aten.pixel_shuffle,
        aten.pixel_unshuffle,
        aten.smooth_l1_loss,
        aten.softshrink,
        aten.threshold,
    }
)


def parts_of(func: Any, packet: Any) -> Callable[..., Any] | None:
    """PyTorch's own decomposition of ``packet``'s overload of the name that ``func`` has."""
    from torch._decomp import decomposition_table

    if packet not in PACKETS:
        return None
    overload: Any = getattr(packet, func._overloadname, None)
    return decomposition_table.get(overload)
