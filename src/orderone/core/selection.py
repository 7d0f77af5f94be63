"""Which parameters a measurement is about, chosen once for all measurements.

[MRGSS21] App. A: θ is the transformer stack without embeddings and without scalars. The stack is
everything inside lists of blocks, and the norms that close such a list (GPT-2's ``ln_f``, T5's
``final_layer_norm``): they act on the stack's own signal. Norms of embeddings and of output heads
act outside it and are left out with them. A model without lists of blocks is taken whole, less
embeddings and heads.

One logic reads a live module and a checkpoint's names; a module adds only what its types say
(an ``nn.Embedding`` is an embedding whatever it is called) and which parameters are tied.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.parameter_names import (
    block_path,
    by_key,
    clean_name,
    is_known_container,
    is_norm,
    kind_of,
    layer_of,
    role_of,
)

__all__ = [
    "Selection",
    "clean_name",
    "grouped",
    "kind_of",
    "layer_of",
    "role_of",
    "selected",
    "selected_names",
]

_BUFFER = re.compile(r"masked_bias|inv_freq|position_ids|running_(mean|var)|num_batches_tracked")

Grouping = Literal["total", "layer", "role", "kind"]


@dataclass(frozen=True)
class Selection:
    """What to measure; the default is the transformer stack, [MRGSS21] App. A.

    include      regular expressions, searched in cleaned names: exactly these parameters,
                 wherever they are, instead of the default
    exclude      regular expressions: not these
    embeddings   also the token, position, patch and class-token embeddings, the output head and
                 whatever else lies outside the stack
    scalars      also parameters of a single element
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    embeddings: bool = False
    scalars: bool = False


def selected(model: nn.Module, selection: Selection | None = None) -> dict[str, Tensor]:
    """The model's selected parameters by cleaned name; tied ones once, under their first name."""
    parameters = {clean_name(name): each for name, each in model.named_parameters()}
    shapes = {name: tuple(each.shape) for name, each in parameters.items()}
    names = _select(shapes, selection or Selection(), _embedded(model))
    return {name: parameters[name] for name in names}


def selected_names(
    shapes: Mapping[str, tuple[int, ...]], selection: Selection | None = None
) -> list[str]:
    """The same choice where there are only names and shapes; names come back as given.

    Buffers that checkpoints are known to hold (causal masks, rotary frequencies, running means)
    are left out; others cannot be told from parameters.
    """
    shapes = {name: shape for name, shape in shapes.items() if not _is_buffer(name, shape)}
    original = {clean_name(name): name for name in shapes}
    cleaned = {clean_name(name): shape for name, shape in shapes.items()}
    return [original[name] for name in _select(cleaned, selection or Selection(), ())]


def grouped(names: Iterable[str], by: Grouping = "total") -> dict[str, list[str]]:
    """Names by group, in order: all together, by layer, by role, or gains apart from matrices.

    Names outside every layer, such as a final norm, are the layer 'rest'.
    """
    keys: dict[str, Callable[[str], str]] = {
        "total": lambda name: "total",
        "layer": lambda name: layer_of(name) or "rest",
        "role": role_of,
        "kind": kind_of,
    }
    if by not in keys:
        raise ConfigError(f"grouping '{by}'", expected=" or ".join(keys), do="choose one of them")
    return by_key((keys[by](name), name) for name in names)


def _is_buffer(name: str, shape: tuple[int, ...]) -> bool:
    """GPT-2 and GPT-NeoX call their causal mask ``attn.bias``: known by its shape (1, 1, T, T)."""
    leaf = name.split(".")[-1]
    mask = leaf == "bias" and len(shape) == 4 and shape[:2] == (1, 1)
    return mask or bool(_BUFFER.fullmatch(leaf))


def _embedded(model: nn.Module) -> set[str]:
    """Parameters that an embedding module owns: a fact of types, whatever their names."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {
        clean_name(f"{prefix}.{name}" if prefix else name)
        for prefix, module in model.named_modules()
        if isinstance(module, kinds)
        for name, _ in module.named_parameters(recurse=False)
    }


def _select(
    shapes: Mapping[str, tuple[int, ...]], selection: Selection, embedded: Collection[str]
) -> list[str]:
    included = _matching(selection.include, shapes)
    excluded = _matching(selection.exclude, shapes)
    if selection.include:
        names = [name for name in shapes if name in included]
    else:
        names = _default(shapes, selection, embedded)
    names = [name for name in names if name not in excluded]
    if not names:
        raise ModelError(
            f"no parameter of {len(shapes)} is selected",
            expected="at least one",
            do="include some by a regular expression, or exclude fewer",
        )
    return names


def _matching(patterns: tuple[str, ...], names: Collection[str]) -> set[str]:
    """Names in which any pattern is found; each pattern must be valid and be found in one."""
    found: set[str] = set()
    for pattern in patterns:
        try:
            search = re.compile(pattern).search
        except re.error as error:
            raise ConfigError(
                f"pattern '{pattern}' ({error})",
                expected="a regular expression",
                do="correct it; escape special characters with a backslash",
            ) from error
        matches = {name for name in names if search(name)}
        if not matches:
            raise ConfigError(
                f"pattern '{pattern}' matches none of {len(names)} parameters",
                expected=f"a part of a name, such as '{next(iter(names), '')}'",
                do="correct the pattern",
            )
        found |= matches
    return found


def _default(
    shapes: Mapping[str, tuple[int, ...]], selection: Selection, embedded: Collection[str]
) -> list[str]:
    outside = ("embedding", "position", "head")
    stack = _stack(shapes)
    return [
        name
        for name, shape in shapes.items()
        if (selection.scalars or math.prod(shape) != 1)
        and (
            selection.embeddings
            or (name in stack and name not in embedded and role_of(name) not in outside)
        )
    ]


def _stack(names: Collection[str]) -> set[str]:
    """Names in blocks, and of the norms that close a list of blocks; all where there is none."""
    blocks = _blocks(names)
    if not blocks:
        return set(names)
    above = {path[:depth] for path in blocks for depth in range(len(path) - 1)}
    stack: set[str] = set()
    for name in names:
        path = block_path(name)
        inside = path is not None and path in blocks
        if inside or (is_norm(name) and _closes(name, above)):
            stack.add(name)
    return stack


def _closes(name: str, above: Collection[tuple[str, ...]]) -> bool:
    """Whether a norm stands beside a list of blocks, or beside a module around it, and after it."""
    *owner, module, _ = name.split(".")
    return tuple(owner) in above and not re.search("emb|pre", module)


def _blocks(names: Collection[str]) -> set[tuple[str, ...]]:
    """The paths of all blocks: children, with modules of their own, of a list of their like."""
    contents: dict[tuple[str, ...], set[str]] = {}
    for name in names:
        path = block_path(name)
        if path is None:
            continue
        rest = _within(name, path)
        if "." in rest:  # a bare layer of an nn.Sequential is no block
            contents.setdefault(path, set()).add(rest)
    lists = by_key((".".join(path[:-1]), ".".join(path)) for path in contents)
    repeated = {
        container
        for container, children in lists.items()
        if is_known_container(tuple(container.split("."))) or _alike(children, contents)
    }
    return {path for path in contents if ".".join(path[:-1]) in repeated}


def _within(name: str, path: tuple[str, ...]) -> str:
    return ".".join(name.split(".")[len(path) :])


def _alike(children: list[str], contents: Mapping[tuple[str, ...], set[str]]) -> bool:
    """Whether any two children hold the same names: a list of blocks, not a pipeline of parts."""
    held = [frozenset(contents[tuple(child.split("."))]) for child in children]
    return len(set(held)) < len(held)
