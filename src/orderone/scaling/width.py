"""A configuration at another width: every field that is a width follows, heads keep their size.

Fields are told by name, as transformers' configurations spell them (hidden_size, n_embd, d_model,
intermediate_size, num_attention_heads, head_dim, ...), in nested configurations too. A model of
ours has n, H and d_ff.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from orderone.core.errors import ConfigError

WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "n_units")
"""Width of the residual stream; the first of these that a configuration has is *the* width."""

_ALSO_WIDTHS = (
    *("hidden_sizes", "embed_dims", "encoder_hidden_size", "decoder_hidden_size"),
    *("projection_dim", "word_embed_proj_dim", "embedding_size"),
)
"""Follow the width where they equal it, or are lists of widths by stage."""

_MLP_WIDTHS = (
    *(
        "intermediate_size",
        "n_inner",
        "d_ff",
        "ffn_dim",
        "d_inner",
        "hidden_dim",
        "ffn_hidden_size",
    ),
    *("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "intermediate_size_mlp", "block_ff_dim"),
)
_HEADS = (
    *("num_attention_heads", "n_head", "num_heads", "n_heads", "heads"),
    *("encoder_attention_heads", "decoder_attention_heads"),
)
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_SIZES = ("head_dim", "d_kv", "d_head", "kv_channels")


@runtime_checkable
class OurConfig(Protocol):
    """What is needed of a configuration of ours."""

    @property
    def n(self) -> int: ...
    @property
    def H(self) -> int: ...
    @property
    def d_ff(self) -> int | None: ...
    def replace(self, **changes: Any) -> Any: ...


def width_of(config: Any) -> int:
    """Width of the residual stream that a configuration states; ConfigError when none is found."""
    if isinstance(config, OurConfig):
        return config.n
    for part in (config, *_nested(config)):
        for name in WIDTHS:
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    raise ConfigError(
        f"a {type(config).__name__} with no field that is a width",
        expected=f"one of {', '.join(WIDTHS)}",
        do="name a factory package.module:function that takes the width",
    )


def at_width(model_or_config: Any, width: int) -> Any:
    """The same configuration, or an untrained model of the same class, at another width.

    A module must carry the ``config`` that it was built from, as ours and transformers' do.
    """
    if not isinstance(model_or_config, nn.Module):
        return config_at_width(model_or_config, width)
    config = getattr(model_or_config, "config", None)
    if config is None:
        raise ConfigError(
            f"a {type(model_or_config).__name__} without a configuration",
            expected="a model built from one, whose width can be changed",
            do="give make=, a function from a width to a model",
        )
    return type(model_or_config)(config_at_width(config, width))


def config_at_width(config: Any, width: int) -> Any:
    """A copy of ``config`` at ``width``: MLPs keep their multiplier, heads their size.

    Where heads cannot keep their size (width / head size is not whole) their number stays and the
    size follows; where that is not whole either the width is refused.
    """
    if width < 1:
        raise ConfigError(f"width {width}", expected="a positive whole number", do="raise it")
    before = width_of(config)
    if width == before:
        return copy.deepcopy(config)
    if isinstance(config, OurConfig):
        return _ours(config, width)
    scaled = copy.deepcopy(config)
    for part in (scaled, *_nested(scaled)):
        _scale(part, width, before)
    return scaled


def _ours(config: OurConfig, width: int) -> Any:
    # d_ff that was asked for is a number; scaled, it keeps its multiplier.
    changes = {} if config.d_ff is None else {"d_ff": round(config.d_ff * width / config.n)}
    return config.replace(n=width, H=_heads(config.H, width, config.n), **changes)


def _nested(config: Any) -> Iterator[Any]:
    """Configurations inside a configuration: text_config, vision_config, encoder, ..."""
    for value in cast("dict[str, Any]", getattr(config, "__dict__", {})).values():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield value
            yield from _nested(value)


def _scale(config: Any, width: int, before: int) -> None:
    fields = cast("dict[str, Any]", config.to_dict())
    own = next((fields[name] for name in WIDTHS if isinstance(fields.get(name), int)), before)
    for name in (*WIDTHS, *_ALSO_WIDTHS):
        value = fields.get(name)
        if isinstance(value, list) or (value is not None and (name in WIDTHS or value == own)):
            setattr(config, name, _each(value, lambda size: _whole(size, width, before, name)))  # noqa: B023
    for name in _MLP_WIDTHS:
        if isinstance(fields.get(name), int | list):
            setattr(config, name, _each(fields[name], lambda size: round(size * width / before)))
    _scale_heads(config, fields, width, before)


def _scale_heads(config: Any, fields: Mapping[str, Any], width: int, before: int) -> None:
    """More heads of the same size; where that is not whole, as many heads of another size."""
    counts = {name: fields[name] for name in _HEADS if isinstance(fields.get(name), int | list)}
    keys = {name: fields[name] for name in _KEY_HEADS if isinstance(fields.get(name), int)}
    # One key head for all queries is a choice of architecture, not a count that scales.
    keys = {name: count for name, count in keys.items() if count != 1}
    numbers = [n for value in (*counts.values(), *keys.values()) for n in _listed(value)]
    if all((count * width) % before == 0 for count in numbers):
        for name, value in (counts | keys).items():
            setattr(config, name, _each(value, lambda count: count * width // before))
        return
    if not any(isinstance(fields.get(name), int) for name in _HEAD_SIZES):
        # A list is of stages (Swin), each twice as wide as the one before it.
        stem = fields.get("embed_dim", before)
        for value in counts.values():
            first, its_width = (value[0], stem) if isinstance(value, list) else (value, before)
            _heads(first, its_width * width // before, its_width)
    for name in _HEAD_SIZES:
        if isinstance(fields.get(name), int):
            setattr(config, name, _whole(fields[name], width, before, name))


def _heads(count: int, width: int, before: int) -> int:
    """Heads at ``width``: of the same size where that is whole, else as many as before."""
    if (count * width) % before == 0:
        return count * width // before
    if width % count:
        size = before // count
        raise ConfigError(
            f"width {width} with {count} heads of size {size} at width {before}",
            expected=f"a multiple of {size}, or of {count}",
            do=f"take {max(1, round(width / size)) * size}",
        )
    return count


def _whole(size: int, width: int, before: int, name: str) -> int:
    if (size * width) % before:
        raise ConfigError(
            f"width {width}, at which {name} would be {size * width / before:g}",
            expected="a whole number",
            do=f"take a multiple of {before // math.gcd(size, before)}",
        )
    return size * width // before


def _listed(value: int | list[int]) -> list[int]:
    return value if isinstance(value, list) else [value]


def _each(value: Any, change: Callable[[int], int]) -> Any:
    """``change`` of a number, or of every number of a list (Swin's stages)."""
    return [change(each) for each in value] if isinstance(value, list) else change(value)
