"""Parameters that no module of torch holds: tokens, positions, relative biases, scales, experts."""

from __future__ import annotations

import re
from collections.abc import Callable

from orderone.core.parameter_names import is_position
from orderone.scaling.found import Found, lookup, matrix
from orderone.scaling.roles import Role
from orderone.scaling.tree import Site

_TOKEN = re.compile(
    r"(\w+_)?(cls|class|dist|distillation|mask|reg|register|global)_?(tokens?|embedding)"
    r"|latents?|query_tokens?|probe"
)
_WORD = re.compile(r"mask_emb|masked_spec_embed")
_RELATIVE = re.compile(r"relative_\w*bias\w*|rel_pos\w*")
_SCALE = re.compile(
    r"(\w+_)?(temperature|tau)|\w*logit_scale\w*|gamma_?\w*|lambda_?\w*|layer_?scale\w*|gain|alpha"
)
_BIAS = re.compile(r"bias|[qkvo]_bias|bias_[qkvo]")


def raw(site: Site) -> Found | None:
    """Role of a parameter by its owner's kind, else by its own name; None when neither tells."""
    for rule in (_relative_attention, _expert, _router, _by_name):
        found = rule(site)
        if found is not None:
            return found
    return None


def _relative_attention(site: Site) -> Found | None:
    """XLNet: (n, H, C) maps summed over n (o: over H and C), biases and segments by head."""
    if not site.kind.endswith("RelativeAttention"):
        return None
    width = site.shape[-1] * site.shape[-2]
    letters = {"q": "Q", "k": "K", "v": "V", "r": "K"}
    if site.leaf in letters:
        what = "K of relative positions" if site.leaf == "r" else letters[site.leaf]
        role = matrix(letters[site.leaf], site.shape[0], width)
        return Found(role, f"{site.leaf} of {site.kind}, summed over its first axis: {what}")
    if site.leaf == "o":
        role = matrix("U", width, site.shape[0])
        return Found(role, f"o of {site.kind}, summed over heads and channels: U")
    if site.leaf.endswith("_bias") or site.leaf == "seg_embed":
        role = lookup("relative-bias", width, start="keep")
        return Found(role, f"{site.leaf} of {site.kind}: added to q, or matched with it, by head")
    return None


def _expert(site: Site) -> Found | None:
    """Mixtures of experts, packed along the first axis; each expert is a map of its own."""
    if not site.kind.endswith("Experts"):
        return None
    if site.leaf.endswith("_bias"):
        parts = 2 if site.leaf == "gate_up_proj_bias" else 1
        role = lookup("bias", site.shape[-1] // parts, start="zero")
        return Found(role, f"{site.leaf} of {site.kind}: bias of each expert")
    transposed = _transposed(site)
    if site.leaf not in ("gate_up_proj", "down_proj") or transposed is None:
        return None
    _, *fans = site.shape
    fan_in, fan_out = fans if transposed else reversed(fans)
    if site.leaf == "down_proj":
        return Found(matrix("X", fan_in, fan_out), f"{site.leaf} of {site.kind}: X of each expert")
    reason = f"{site.leaf} of {site.kind}: gate and W of each expert packed, fan-out of one of them"
    return Found(matrix("W", fan_in, fan_out // 2), reason)


def _transposed(site: Site) -> bool | None:
    """Whether experts' maps are stored (in, out); None where the shapes allow both or neither."""
    up, down = (getattr(site.owner, name, None) for name in ("gate_up_proj", "down_proj"))
    if up is None or down is None or up.ndim != 3 or down.ndim != 3:
        return None
    (_, a, b), (_, c, d) = up.shape, down.shape
    as_linear, as_stored = (b == c and a == 2 * d), (a == d and b == 2 * c)
    return as_stored if as_linear != as_stored else None


def _router(site: Site) -> Found | None:
    if not site.kind.endswith("Router"):
        return None
    if site.leaf == "weight" and len(site.shape) == 2:
        role = matrix("dense", site.shape[1], site.shape[0])
        return Found(role, f"{site.kind}: chooses experts")
    if len(site.shape) == 1:
        return Found(lookup("bias", site.shape[0], start="zero"), f"{site.leaf} of {site.kind}")
    return None


def _by_name(site: Site) -> Found | None:
    width = site.shape[-1] if site.shape else 1
    said = f"{site.leaf} of {site.kind}, by name"
    rules: tuple[tuple[bool, Callable[[], Role], str], ...] = (
        (
            bool(_RELATIVE.fullmatch(site.leaf)),
            lambda: lookup("relative-bias", width, start="keep"),
            "a bias by relative position, one a head",
        ),
        (bool(_TOKEN.fullmatch(site.leaf)), lambda: lookup("class-token", width), "a token"),
        (bool(_WORD.fullmatch(site.leaf)), lambda: lookup("word", width), "a word"),
        (is_position(site.name), lambda: lookup("position", width), "positions"),
        (
            bool(_BIAS.fullmatch(site.leaf)) and len(site.shape) == 1,
            lambda: lookup("bias", width, start="zero"),
            "a bias",
        ),
        (
            site.leaf == "sinks" and len(site.shape) == 1,
            lambda: lookup("relative-bias", width, start="keep"),
            "a bias of the attention's softmax, one a head",
        ),
        (
            bool(_SCALE.fullmatch(site.leaf)),
            lambda: lookup("gain", max(1, site.parameter.numel()), start="keep"),
            "a scale",
        ),
    )
    for holds, role, what in rules:
        if holds:
            return Found(role(), f"{said}: {what}")
    return None
