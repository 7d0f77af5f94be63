"""Linear maps: their fans, their letter by name, and the width of one part of a packed one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from torch import nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from orderone.core.parameter_names import role_of
from orderone.scaling.tree import Tree, class_name

_LETTERS = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "query-key-value": "qkv",
    "key-value": "qkv",
    "output": "U",
    "mlp-in": "W",
    "mlp-gate": "gate",
    "mlp-out": "X",
}
_ANY_PROJECTION = ("c_proj", "proj", "dense", "wo", "out", "output")
_PACKED_KEY_VALUE = ("kv", "wkv", "kv_proj", "to_kv", "key_value")


@dataclass(frozen=True)
class Letter:
    """What a map is in its block, and how many of its outputs one part of it has."""

    group: str
    fan_out: int
    why: str


def matrix_fans(module: nn.Module) -> tuple[int, int] | None:
    """(fan_in, fan_out) of a map that acts on every token by itself; None for other modules."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if class_name(module) == "Conv1D" and hasattr(module, "nf"):  # of transformers: (in, out)
        fan_in, fan_out = cast("nn.Parameter", module.weight).shape
        return fan_in, fan_out
    if isinstance(module, _ConvNd) and math.prod(module.kernel_size) == 1 and not module.transposed:
        return module.in_channels // module.groups, module.out_channels
    return None


def letter(tree: Tree, path: str, fan_out: int) -> Letter:
    """The paper's letter of a map, read off its name and what stands beside it.

    'dense' where the name does not tell: its fans are right all the same.
    """
    role = _role(tree, path)
    group = _LETTERS.get(role)
    if group is None:
        return Letter("dense", fan_out, "no letter fits its name")
    if role == "query-key-value":
        return _packed_attention(tree, path, fan_out)
    if role == "key-value":
        return Letter("qkv", fan_out // 2, "k and v packed, fan-out of one of them")
    if role == "mlp-in" and _inner_width(tree, path) * 2 == fan_out:
        return Letter("W", fan_out // 2, "gate and W packed, fan-out of one of them")
    return Letter(group, fan_out, group)


def _role(tree: Tree, path: str) -> str:
    """The name's role, corrected by the map's surroundings."""
    role = role_of(f"{path}.weight")
    own = path.rpartition(".")[2].lower()
    beside = {name.rpartition(".")[2].lower() for name in tree.siblings(path)}
    if role == "key-value" and own not in _PACKED_KEY_VALUE:
        return "other"  # a factor of a low-rank one
    if role == "mlp-gate" and own == "w1" and "w3" not in beside:
        return "mlp-in"  # without a third map nothing is gated
    if role == "query-key-value" and own == "in_proj" and "att" not in _above(tree, path):
        return "other"
    if role == "mlp-out" and own in _ANY_PROJECTION and not tree.in_block(path):
        return "other"
    return role


def _above(tree: Tree, path: str) -> str:
    """The owner's name and class."""
    above = path.rpartition(".")[0]
    return f"{above} {class_name(tree.modules[above])}".lower()


def _packed_attention(tree: Tree, path: str, fan_out: int) -> Letter:
    """q's width in any split: what the attention's output map takes in."""
    beside = {
        role_of(f"{name}.weight"): matrix_fans(module)
        for name, module in tree.siblings(path).items()
    }
    if "query" in beside:
        return Letter("qkv", fan_out // 2, "k and v packed, fan-out of one of them")
    out = beside.get("output")
    if out is not None and out[0] < fan_out:
        return Letter("qkv", out[0], "q, k and v packed, fan-out that of q")
    if fan_out % 3 == 0:
        return Letter("qkv", fan_out // 3, "q, k and v packed, fan-out that of q")
    return Letter("qkv", fan_out, "packed in a split that cannot be told, fan-out that of all")


def _inner_width(tree: Tree, path: str) -> int:
    """Fan-in of the X beside a W; 0 where there is none."""
    for name, module in tree.siblings(path).items():
        fans = matrix_fans(module)
        if fans is not None and role_of(f"{name}.weight") == "mlp-out":
            return fans[0]
    return 0
