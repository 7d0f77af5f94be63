"""Roles by the type of the module that holds a parameter; names only for the letter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from orderone.core.parameter_names import is_position
from orderone.scaling.found import Found, lookup, matrix
from orderone.scaling.matrices import letter, matrix_fans
from orderone.scaling.norms import gain_start, is_normalisation, is_shift
from orderone.scaling.raw import raw
from orderone.scaling.rescaled import embedding_scale, score_scale
from orderone.scaling.tree import Site, Tree, class_name

_RELATIVE = re.compile(r"relative_\w*bias\w*|rel_pos\w*")
_SEGMENT = re.compile(r"token_type\w*|segment\w*|seg_\w*")
_PATCH = re.compile(r"(to_)?patch(es|ify)?(_?(emb\w*|proj\w*|conv\w*))?|conv_proj")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a rule may look at beside the parameter itself."""

    tree: Tree
    heads: Mapping[str, str]
    """Output maps by name, and why they are."""


def role_at(site: Site, scene: Scene) -> Found | None:
    """The role of a parameter at one of its places; None when no rule knows it."""
    rules: tuple[Callable[[Site, Scene], Found | None], ...] = (
        _head,
        _embedding,
        _attention,
        _matrix,
        _convolution,
        _normalisation,
    )
    for rule in rules:
        found = rule(site, scene)
        if found is not None:
            return found
    if isinstance(site.owner, nn.PReLU):
        return Found(lookup("gain", site.shape[0], start="keep"), "slope of PReLU")
    return raw(site)


def _head(site: Site, scene: Scene) -> Found | None:
    """An output map; a bias that stands beside one and is as long is its bias."""
    if site.path in scene.heads:
        why = f"{_described(site, scene)}: {scene.heads[site.path]}"
        fan_in, fan_out = matrix_fans(site.owner) or (0, 0)
        if site.leaf == "weight":
            return Found(matrix("head", fan_in, fan_out, head=True), why)
        if site.leaf == "bias":
            return Found(
                lookup("bias", fan_out, start="zero", head=True), f"bias of the head, {why}"
            )
        return None
    if site.leaf != "bias" or len(site.shape) != 1 or matrix_fans(site.owner) is not None:
        return None
    for own, module in scene.tree.children(site.path).items():
        head = f"{site.path}.{own}" if site.path else own
        fans = matrix_fans(module)
        if head in scene.heads and fans is not None and fans[1] == site.shape[0]:
            role = lookup("bias", site.shape[0], start="zero", head=True)
            return Found(role, f"bias of {site.kind}, as long as the head {own} beside it")
    return None


def _embedding(site: Site, scene: Scene) -> Found | None:
    owner = site.owner
    if not isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        return None
    width = owner.embedding_dim
    what = _described(site, scene)
    own = site.path.rpartition(".")[2]
    zero = owner.padding_idx
    if _RELATIVE.fullmatch(own):
        reason = f"{what}: a bias by relative position, one a head"
        return Found(lookup("relative-bias", width, start="keep"), reason, zero)
    if is_position(site.name):
        return Found(lookup("position", width), f"{what}: positions", zero)
    if _SEGMENT.fullmatch(own):
        return Found(lookup("position", width), f"{what}: segments, added like positions", zero)
    scale = embedding_scale(owner)
    role = replace(lookup("word", width), scale=scale)
    return Found(role, f"{what}: words{_times(scale)}", zero)


def _attention(site: Site, scene: Scene) -> Found | None:
    """torch's own attention: packed or separate maps of q, k and v."""
    owner = site.owner
    if not isinstance(owner, nn.MultiheadAttention):
        return None
    n = owner.embed_dim
    letters = {
        "in_proj_weight": ("qkv", n, "q, k and v packed, fan-out that of q"),
        "q_proj_weight": ("Q", n, "Q"),
        "k_proj_weight": ("K", owner.kdim, "K"),
        "v_proj_weight": ("V", owner.vdim, "V"),
    }
    if site.leaf in letters:
        group, fan_in, what = letters[site.leaf]
        return Found(matrix(group, fan_in, n), f"{site.leaf} of nn.MultiheadAttention: {what}")
    # in_proj_bias is packed, bias_k and bias_v are not: either is n long for one of q, k and v.
    return Found(lookup("bias", n, start="zero"), f"{site.leaf} of nn.MultiheadAttention")


def _matrix(site: Site, scene: Scene) -> Found | None:
    fans = matrix_fans(site.owner)
    if fans is None or isinstance(site.owner, _ConvNd):
        return None
    fan_in, fan_out = fans
    what = _described(site, scene)
    if site.leaf == "bias":  # of what is packed, as long as one part, like the weight's fan-out
        part = letter(scene.tree, site.path, fan_out).fan_out
        return Found(lookup("bias", part, start="zero"), f"bias of {what}")
    if site.leaf != "weight":
        return None
    if _is_patch(site) and not scene.tree.in_block(site.path):
        return Found(matrix("patch", fan_in, fan_out), f"{what}: patches")
    found = letter(scene.tree, site.path, fan_out)
    above = site.path.rpartition(".")[0]
    scale = score_scale(scene.tree.modules[above]) if found.group == "Q" else 1.0
    role = replace(matrix(found.group, fan_in, found.fan_out), scale=scale)
    return Found(role, f"{what}: {found.why}{_times(scale)}")


def _convolution(site: Site, scene: Scene) -> Found | None:
    owner = site.owner
    if not isinstance(owner, _ConvNd) or owner.transposed:
        return None
    what = _described(site, scene)
    if site.leaf == "bias":
        return Found(lookup("bias", site.shape[0], start="zero"), f"bias of {what}")
    if site.leaf != "weight":
        return None
    area = math.prod(owner.kernel_size)
    fan_in = owner.in_channels // owner.groups * area
    tiles = tuple(owner.stride) == tuple(owner.kernel_size)
    if tiles and (_is_patch(site) or (area > 1 and not scene.tree.in_block(site.path))):
        return Found(matrix("patch", fan_in, owner.out_channels), f"{what}: patches")
    return Found(
        matrix("convolution", fan_in, owner.out_channels),
        f"{what}: fan-in {owner.in_channels // owner.groups} channels × {area}",
    )


def _normalisation(site: Site, scene: Scene) -> Found | None:
    if not is_normalisation(site.owner):
        return None
    width = site.parameter.numel()
    what = _described(site, scene)
    if is_shift(site.leaf):
        return Found(lookup("bias", width, start="zero"), f"bias of {what}")
    start = gain_start(site.owner, site.leaf)
    how = {
        "one": "multiplies by w",
        "zero": "multiplies by 1 + w",
        "keep": "kept as it is, since its class does not tell how it starts",
    }[start]
    return Found(lookup("gain", width, start=start), f"gain of {what}: {how}")


def _is_patch(site: Site) -> bool:
    return any(_PATCH.fullmatch(part) for part in site.path.split("."))


def _times(scale: float) -> str:
    return "" if scale == 1 else f", which the model multiplies by {scale:.4g}"


def _described(site: Site, scene: Scene) -> str:
    """'nn.Linear named q_proj in LlamaAttention'."""
    kind = type(site.owner)
    prefix = "nn." if kind.__module__.startswith("torch.nn.") else ""
    if not site.path:
        return f"{prefix}{site.kind}"
    above, _, own = site.path.rpartition(".")
    around = class_name(scene.tree.modules[above])
    return f"{prefix}{site.kind} named {own} in {around}"
