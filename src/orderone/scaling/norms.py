"""Gains of normalisations, and the value at which such a gain does nothing.

Most gains multiply by w and start at one; some (Gemma's) multiply by 1 + w and start at zero. Which
it is, the module itself answers: at the w that silences it.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from orderone.scaling.roles import Start
from orderone.scaling.tree import class_name

_OF_TORCH = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)
_FORWARDS = {kind.forward for kind in (*_OF_TORCH[:-1], nn.BatchNorm2d, nn.InstanceNorm2d)}
"""What multiplies by w; a subclass with a forward of its own may not (Nemotron's LayerNorm1P)."""
_NAMED = re.compile(r"norm|^rms|^ln$", re.IGNORECASE)
_SHIFT = re.compile(r"bias|\w+_bias|beta|shift|b_?\d?")


def is_normalisation(module: nn.Module) -> bool:
    """By type, or by class name: LlamaRMSNorm, T5LayerNorm, ..."""
    return isinstance(module, _OF_TORCH) or bool(_NAMED.search(class_name(module)))


def is_shift(leaf: str) -> bool:
    """Whether a normalisation's parameter is added rather than multiplied."""
    return bool(_SHIFT.fullmatch(leaf))


def gain_start(module: nn.Module, leaf: str) -> Start:
    """one, zero, or keep where the module does not answer."""
    if type(module).forward in _FORWARDS or _silent(module, leaf, at=0.0):
        return "one"
    if _silent(module, leaf, at=-1.0):
        return "zero"
    # Of a norm of torch's, images' layout is what keeps a subclass from answering (timm).
    return "one" if isinstance(module, _OF_TORCH) else "keep"


@torch.no_grad()
def _silent(module: nn.Module, leaf: str, *, at: float) -> bool:
    """Whether the module gives zeros when that parameter is ``at`` everywhere."""
    probe = object.__new__(type(module))  # not copied: fully_shard's classes refuse to be
    probe.__dict__.update(module.__dict__)
    with torch.device("cpu"):
        values = {
            name: torch.full(each.shape, at if name == leaf else 0.0)
            for name, each in module.named_parameters(recurse=False)
        }
        probe.__dict__["_parameters"] = values
        x = torch.arange(1.0, 1 + 2 * values[leaf].numel()).view(2, *values[leaf].shape)
        try:
            answer = type(module).forward(probe, x)
        except Exception:  # any code may be in a foreign forward; not answering is an answer
            return False
    return isinstance(answer, Tensor) and answer.device.type == "cpu" and not answer.any()
