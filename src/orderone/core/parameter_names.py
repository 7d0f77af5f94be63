"""What a parameter's name alone says: its layer, its role and its kind.

Names follow conventions (Hugging Face, timm, torch.nn, ours), so these are readings, not facts;
what they cannot read is 'other', never guessed. Everything here works on names without a model,
so that a checkpoint on disk is read exactly as the live module is.
"""

import re
from collections.abc import Iterable

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_CONTAINER = r"(?:encoder_|decoder_)?(?:layers?|blocks?|h|resblocks?|layer_module|groups?)"
_CONTAINER_WORD = re.compile(_CONTAINER)
_FUSED_INDEX = re.compile(_CONTAINER + r"_(\d+)")  # torchvision's encoder_layer_0
_TOWER = re.compile(r"(?:encoder|decoder|text|vision|visual|audio|language)(?:_\w+)?")
_OUTSIDE = re.compile(
    r"(?:\w*emb\w*|stem|patch\w*|conv_stem|conv_layers|feature_extractor|lm_head|heads?|classifier"
    r"|score|cls|pooler|predictions)"
)
_NORM = re.compile(r"\w*norm\w*|\w*_?ln(?:_\w+|\d+)?|ln\d*|rms\w*")
_POSITION = re.compile(
    r"\w*pos(?:ition)?s?_?emb\w*|\w*position\w*|wpe|embed_positions|\w*relative_\w*bias\w*"
    r"|rel_pos\w*|distance_embedding|pos_conv\w*"
)
_EMBEDDING = re.compile(
    r"\w*emb(?:ed\w*|s|eddings?\w*)?|wte|word|shared|\w*(?:cls|class|dist|mask|reg|register)_tokens?"
    r"|stem|patch\w*|conv_stem|conv_proj|feature_extractor|class_embedding|cls_token|class_token"
    r"|position|tokens?"
)
_INNER_EMBEDDING = re.compile(r"\w*_emb(?:ed|eddings?)?")  # XLNet's seg_embed, inside its layers
_HEAD = re.compile(
    r"heads?|\w*lm_head\w*|lm_loss|embed_out|classifier|score|cls|qa_outputs|output_projection"
    r"|pooler|predictions|head_\w+|heads_\w+|\w*_projection|unembed\w*"
)
_BIAS_LEAF = re.compile(r"bias|\w+_bias|bias_\w+|b_?[qkvo]|beta")
_GAIN_LEAF = re.compile(r"gamma|g|scale|lambda_?\d*|layer_?scale\w*")
_ATTENTION = re.compile(r"\w*att(?:n|ention)\w*|self|sa|ca")

# A matrix's role by the name of its module; the first pattern that fits decides.
_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        (
            "query-key-value",
            r"in_proj|c_attn|w?qkv(?:_proj)?|query_key_value|to_qkv|att_proj|qkv_\w+",
        ),
        ("key-value", r"w?kv(?:_proj)?|to_kv|kv_\w+|key_value"),
        ("query", r"q|w_?q|q_proj|query|to_q|q_attn|q_lin|q_[ab]_proj|query_proj"),
        ("key", r"k|w_?k|k_proj|key|to_k|k_lin|key_proj"),
        ("value", r"v|w_?v|v_proj|value|to_v|v_lin|value_proj"),
        ("mlp-gate", r"gate_proj|w1|wi_0|w_gate|linear_v|fc1_g"),
        (
            "mlp-in",
            r"w|wi|wi_1|w3|up_proj|gate_up_proj|c_fc|fc1|fc_in|linear1|lin1|dense_h_to_4h|layer_1"
            r"|intermediate(?:_dense)?|ffn|fc1_x|w_?in|linear_1",
        ),
        (
            "mlp-out",
            r"x|w2|down_proj|fc2|fc_out|linear2|lin2|dense_4h_to_h|layer_2|w_?out|linear_2"
            r"|ffn_output|output_dense",
        ),
        ("output", r"u|o|w_?o|o_proj|out_proj|to_out|out_lin|output_proj"),
    )
)
_PROJECTION = re.compile(r"c_proj|proj|dense|wo|out|output")  # out of attention, or of the MLP


def clean_name(name: str) -> str:
    """The name without the prefixes that DDP, FSDP, checkpointing and torch.compile put on it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def layer_of(name: str) -> str | None:
    """The layer as 'encoder.3', 'decoder.0' or '3'; None outside the layers.

    The index is that of the first list of blocks in the name. Our own blocks are one residual
    path each, so there a layer in the papers' sense is two of them (three in a decoder).
    """
    path = block_path(name)
    if path is None:
        return None
    *before, index = path
    return ".".join([part for part in before if _TOWER.fullmatch(part)] + [index])


def block_path(name: str) -> tuple[str, ...] | None:
    """The name's components up to its block, the index last; None outside blocks."""
    parts = clean_name(name).split(".")
    indexed: list[tuple[str, ...]] = []
    for place, part in enumerate(parts[:-1]):
        if _OUTSIDE.fullmatch(part):
            break
        fused = _FUSED_INDEX.fullmatch(part)
        if fused:
            indexed.append((*parts[:place], fused[1]))
        elif part.isdecimal():
            indexed.append((*parts[:place], part))
    if not indexed:
        return None
    known = (path for path in indexed if is_known_container(path[:-1]))
    return next(known, indexed[0])


def is_known_container(container: tuple[str, ...]) -> bool:
    """Whether a list is by its own name one of blocks, such as ``model.layers``."""
    return bool(container) and bool(_CONTAINER_WORD.fullmatch(container[-1]))


def role_of(name: str) -> str:
    """The coarse role: 'query', 'key', 'value', 'query-key-value', 'key-value', 'output',
    'mlp-in', 'mlp-gate', 'mlp-out', 'norm', 'bias', 'embedding', 'position', 'head' or 'other'.

    A norm's gain and bias are both 'norm'; any other bias in a layer is 'bias'. Gated MLPs have
    'mlp-gate' beside 'mlp-in'; where the two are packed, 'mlp-in' holds both.
    """
    parts = [part.lower() for part in clean_name(name).split(".")]
    if is_position(name):
        return "position"
    if layer_of(name) is None:
        if any(_HEAD.fullmatch(part) for part in parts):
            return "head"
        if any(_EMBEDDING.fullmatch(part) for part in parts):
            return "embedding"
    elif any(_INNER_EMBEDDING.fullmatch(part) for part in parts):
        return "embedding"
    if is_norm(name):
        return "norm"
    if _BIAS_LEAF.fullmatch(parts[-1]):
        return "bias"
    return _matrix_role(parts)


def kind_of(name: str) -> str:
    """'matrices', 'gains' or 'biases': [MRGSS21]'s norms want gains reported apart."""
    leaf = clean_name(name).lower().split(".")[-1]
    if _BIAS_LEAF.fullmatch(leaf) and not is_position(name):
        return "biases"
    return "gains" if is_norm(name) or _GAIN_LEAF.fullmatch(leaf) else "matrices"


def is_norm(name: str) -> bool:
    """Whether the parameter is a normalisation's gain or bias."""
    module = clean_name(name).lower().split(".")[-2:-1]
    return bool(module) and bool(_NORM.fullmatch(module[0]))


def is_position(name: str) -> bool:
    """Whether the parameter is a position embedding or bias, also one inside a layer (T5)."""
    parts = clean_name(name).lower().split(".")
    return any(_POSITION.fullmatch(part) for part in parts)


def by_key(keys: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names by key, both in the order met."""
    groups: dict[str, list[str]] = {}
    for key, name in keys:
        groups.setdefault(key, []).append(name)
    return groups


def _matrix_role(parts: list[str]) -> str:
    modules = parts[:-1] if parts[-1] in ("weight", "kernel") else parts
    own = modules[-1].removesuffix("_weight") if modules else ""  # a bare nn.Linear has no name
    inside = modules[:-1]
    attends = any(_ATTENTION.fullmatch(part) for part in inside)
    if _PROJECTION.fullmatch(own):
        if inside and inside[-1] == "intermediate":
            return "mlp-in"
        return "output" if attends else "mlp-out"
    for role, pattern in _ROLES:
        if pattern.fullmatch(own):
            return role
    return "other"
