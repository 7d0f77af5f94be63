"""timm's ViT, DeiT and Swin, built small: every parameter, hand-written."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from orderone.scaling.placing import find_roles
from orderone.scaling.roles import Role
from tests.timm_alone import timm_or_skip

SIZES: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 3,
    "num_classes": 5,
}
SWIN: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": (1, 1),
    "num_heads": (2, 4),
    "window_size": 4,
    "num_classes": 5,
}


def model(name: str, **settings: Any) -> nn.Module:
    with torch.device("meta"):
        return timm_or_skip().create_model(name, **settings)


def roles_of(built: nn.Module) -> tuple[dict[str, Role], int]:
    """Roles by name; every parameter has exactly one."""
    roles = find_roles(built)
    names = [row.name for row in roles.rows]
    assert names == [name for name, _ in built.named_parameters()]
    assert roles.tied_head is None
    return {row.name: row.role for row in roles.rows}, roles.n


def fans(roles: dict[str, Role], name: str) -> tuple[str, int | None, int | None]:
    return roles[name].group, roles[name].fan_in, roles[name].fan_out


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("vit_tiny_patch16_224", {"head"}),
        ("deit_tiny_patch16_224", {"head"}),
        ("deit_tiny_distilled_patch16_224", {"head", "head_dist"}),
    ],
)
def test_vit_and_deit(name: str, heads: set[str]) -> None:
    roles, n = roles_of(model(name, **SIZES))
    assert n == 24
    assert fans(roles, "patch_embed.proj.weight") == ("patch", 48, 24)
    assert fans(roles, "pos_embed") == ("position", 1, 24)
    assert fans(roles, "cls_token") == ("class-token", 1, 24)
    assert fans(roles, "blocks.0.attn.qkv.weight") == ("qkv", 24, 24)
    assert fans(roles, "blocks.0.attn.qkv.bias") == ("bias", 1, 24)
    assert fans(roles, "blocks.0.attn.proj.weight") == ("U", 24, 24)
    assert fans(roles, "blocks.1.mlp.fc1.weight") == ("W", 24, 72)
    assert fans(roles, "blocks.1.mlp.fc2.weight") == ("X", 72, 24)
    assert fans(roles, "norm.weight") == ("gain", 1, 24)
    assert {each.rpartition(".")[0] for each, role in roles.items() if role.head} == heads
    for head in heads:
        assert fans(roles, f"{head}.weight") == ("head", 24, 5)
    assert ("dist_token" in roles) == ("head_dist" in heads)


def test_swin_s_stages_have_their_own_fans_and_one_n() -> None:
    roles, n = roles_of(model("swin_tiny_patch4_window7_224", **SWIN))
    assert n == 16
    assert fans(roles, "patch_embed.proj.weight") == ("patch", 12, 8)
    assert fans(roles, "layers.0.blocks.0.attn.qkv.weight") == ("qkv", 8, 8)
    assert fans(roles, "layers.1.blocks.0.attn.qkv.weight") == ("qkv", 16, 16)
    assert fans(roles, "layers.1.blocks.0.mlp.fc2.weight") == ("X", 64, 16)
    assert fans(roles, "layers.1.downsample.reduction.weight") == ("dense", 32, 16)
    table = "layers.1.blocks.0.attn.relative_position_bias_table"
    assert fans(roles, table) == ("relative-bias", 1, 4)
    assert roles[table].start == "keep"
    assert fans(roles, "head.fc.weight") == ("head", 16, 5)


def test_layer_scale_is_kept_and_packed_gates_are_halved() -> None:
    scaled, _ = roles_of(model("vit_tiny_patch16_224", **SIZES, init_values=1e-5))
    gain = scaled["blocks.0.ls1.gamma"]
    assert (gain.group, gain.fan_out, gain.start, gain.lookup) == ("gain", 24, "keep", True)
    eva, _ = roles_of(model("eva02_tiny_patch14_224", **(SIZES | {"patch_size": 4})))
    inner = eva["blocks.0.mlp.fc2.weight"].fan_in
    assert fans(eva, "blocks.0.mlp.fc1.weight") == ("W", 24, inner)


def test_a_body_has_no_head() -> None:
    for name in ("vit_tiny_patch16_224", "vit_base_patch16_siglip_224"):
        roles, n = roles_of(model(name, **(SIZES | {"num_classes": 0})))
        assert n == 24
        assert not any(role.head for role in roles.values())


def test_no_stand_in_of_torchvision_is_left() -> None:
    timm_or_skip()
    left = sys.modules.get("torchvision")
    assert left is None or left.__file__ is not None
