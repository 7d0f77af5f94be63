"""Which maps give a model's outputs, and which module is a head tied to the word embedding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from orderone.scaling.matrices import matrix_fans
from orderone.scaling.norms import is_normalisation
from orderone.scaling.tree import Tree, join

_HEAD = re.compile(
    r"(\w+_)?heads?(_\w+)?|(\w+_)?classifier|(\w+_)?qa_outputs|(\w+_)?unembed\w*|cls|score"
    r"|predictions|discriminator_predictions|lm_predictions|seq_relationship|logits_proj"
    r"|(\w+_)?lm_loss|vocab_proj\w*|embed_out|proj_out|output_projection|lm_out\w*"
    r"|(visual|text|audio)_projection"
)
# Maps after the blocks that are not outputs yet.
_HIDDEN = re.compile(
    r"pre_classifier|vocab_transform|\w*pool(er)?|pre_logits|transform|\w*sequence_summary"
    r"|embed\w*|\w*patch\w*|downsample"
)
_OF_ROOT = re.compile(r"fc|output|out")


def heads(tree: Tree) -> dict[str, str]:
    """Output maps by name, each with the reason; the model's main one first.

    What a transformers model declares (``get_output_embeddings``), what is called a head outside
    the blocks, and else the last map of all, when it comes after the blocks.
    """
    declared = _declared(tree)
    named = _named(tree, "", declared)
    found = dict.fromkeys(declared, "the model's output embeddings")
    found |= {name: "an output map by its name" for name in named if name not in found}
    if not found and not _is_bare(tree.root):
        found = dict.fromkeys(_last(tree), "the model's last map")
    return found


def functional_head(tree: Tree) -> str | None:
    """A head of ours that is handed the word embedding and has no parameter of its own."""
    for path, module in tree.modules.items():
        if hasattr(module, "output_multiplier") and not any(True for _ in module.parameters()):
            return path
    return None


def _declared(tree: Tree) -> list[str]:
    declare = getattr(tree.root, "get_output_embeddings", None)
    if not callable(declare):
        return []
    try:
        declared = declare()
    except (AttributeError, NotImplementedError):  # transformers' ways to say that it has none
        return []
    inner = getattr(declared, "_orig_mod", declared)
    return [
        path for path, module in tree.modules.items() if module is inner and matrix_fans(module)
    ]


def _named(tree: Tree, path: str, declared: list[str]) -> Iterator[str]:
    """Maps that are heads by name: of every head-named module its own map, or its last."""
    for own, module in tree.children(path).items():
        below = join(path, own)
        if tree.in_block(below) or _HIDDEN.fullmatch(own):
            continue
        if not (_HEAD.fullmatch(own) or (not path and _OF_ROOT.fullmatch(own))):
            yield from _named(tree, below, declared)
        elif matrix_fans(module) is not None:
            yield below
        else:
            yield from _of_head_module(tree, below, declared)


def _of_head_module(tree: Tree, path: str, declared: list[str]) -> Iterator[str]:
    nested = list(_named(tree, path, declared))
    if isinstance(tree.modules[path], nn.ModuleList | nn.ModuleDict):
        for own, module in tree.children(path).items():  # several heads side by side
            below = join(path, own)
            yield from [below] if matrix_fans(module) else _of_head_module(tree, below, declared)
    elif nested:
        yield from nested
    elif not any(name.startswith(f"{path}.") for name in declared):
        yield from _last_of(tree, path)


def _last_of(tree: Tree, path: str) -> Iterator[str]:
    """The last map of a module; none where a norm follows, as in BERT-like transforms."""
    last = None
    for name, module in tree.modules.items():
        if not name.startswith(f"{path}."):
            continue
        if matrix_fans(module) is not None:
            last = name
        elif is_normalisation(module):
            last = None
    if last is not None:
        yield last


def _last(tree: Tree) -> list[str]:
    """The last map of the model, unless it is in a block, pools, or embeds."""
    maps = [name for name, module in tree.modules.items() if matrix_fans(module) is not None]
    if not maps or tree.in_block(maps[-1]):
        return []
    if any(_HIDDEN.fullmatch(part) for part in maps[-1].split(".")):
        return []
    return maps[-1:]


def _is_bare(root: nn.Module) -> bool:
    """Whether a transformers model is a body without a head."""
    return getattr(root, "base_model", None) is root
