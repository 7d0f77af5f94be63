"""Every parameter of a model with its role: found by rules, said by overrides, or refused.

Rules go by the type of the module that holds a parameter, then by what transformers and timm call
the parameters of their own, and by a module's name only for the letter. A tensor that stands in
several places must have one role in all of them; a head tied to the word embedding is the exception
that the paper makes, [DYZ23] eq. (1.24).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from orderone.core.errors import ConfigError, ModelError
from orderone.scaling.found import Found
from orderone.scaling.heads import functional_head, heads
from orderone.scaling.modules import Scene, role_at
from orderone.scaling.roles import Placement, Role, Roles
from orderone.scaling.tree import Site, Tree, join, tree_of

_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A parameter and all its places, and what the rules say of each."""

    sites: tuple[Site, ...]
    found: tuple[Found | None, ...]

    @property
    def name(self) -> str:
        return self.sites[0].name


def find_roles(model: nn.Module, overrides: Mapping[str, Role] | None = None) -> Roles:
    """Roles of all parameters of a model, wrapped or not, on any device, meta too.

    ``overrides`` maps regular expressions, searched in the names (``re.search``), to roles; the
    first that matches any of a tensor's names decides. Fans that such a role leaves out are those
    that the rules found, or are read off the tensor as (out, in, ...), the last axis of a lookup.
    """
    tree = tree_of(model)
    scene = Scene(tree=tree, heads=heads(tree))
    tensors = [
        _Tensor(sites=sites, found=tuple(role_at(site, scene) for site in sites))
        for sites in _by_tensor(tree.sites)
    ]
    if not tensors:
        raise ModelError(
            f"{type(tree.root).__name__} has no parameters",
            expected="a model to scale",
            do="pass the model itself",
        )
    said = _said(tensors, overrides or {})
    _refuse_unplaced([each for each in tensors if each.name not in said])
    rows = [said.get(each.name) or _placed(each, tree) for each in tensors]
    tied = _tied_head(tree, tensors, rows)
    if tied is not None:
        own = any(True for _ in tree.modules[tied].parameters())
        rows = [_with_tie(row, tied, own=own) for row in rows]
    return Roles(rows=tuple(rows), n=_width(tree, scene.heads, rows, tied), tied_head=tied)


def _by_tensor(sites: Iterable[Site]) -> list[tuple[Site, ...]]:
    grouped: dict[int, list[Site]] = {}
    for site in sites:
        grouped.setdefault(id(site.parameter), []).append(site)
    return [tuple(places) for places in grouped.values()]


def _placed(tensor: _Tensor, tree: Tree) -> Placement:
    """What the rules found, once they agree on all places of the tensor."""
    found = _agreed(tensor)
    zero_row = next(
        (each.zero_row for each in tensor.found if each and each.zero_row is not None), None
    )
    if found.role.group == "word" and zero_row is None:
        zero_row = _pad_row(tree, tensor.sites[0])
    if not tensor.sites[0].parameter.requires_grad:
        role = replace(found.role, start="keep")
        found = Found(role, f"{found.reason}; frozen, so kept as it is")
    return _row(tensor, found, zero_row)


def _row(tensor: _Tensor, found: Found, zero_row: int | None) -> Placement:
    first, *others = tensor.sites
    return Placement(
        name=first.name,
        shape=first.shape,
        role=found.role,
        reason=found.reason,
        also=tuple(site.name for site in others),
        zero_row=zero_row,
    )


def _agreed(tensor: _Tensor) -> Found:
    founds = [each for each in tensor.found if each is not None]
    roles = {each.role for each in founds}
    if len(roles) == 1:
        return founds[0]
    tie = _tie(tensor)
    if tie is not None:
        word, head = tie
        return Found(word.role, f"{word.reason}, tied to {head.name}")
    one, other = _two_that_differ(tensor)
    raise ModelError(
        f"one tensor is {one} and {other}",
        expected="one role for a shared parameter",
        do=f"say which, overrides={{'{re.escape(tensor.name)}': Role(group=...)}}, or untie them",
    )


def _tie(tensor: _Tensor) -> tuple[Found, Site] | None:
    """The word embedding and the head of a tensor that is both and nothing else."""
    word, head = None, None
    for site, found in zip(tensor.sites, tensor.found, strict=True):
        if found is None:
            return None
        if found.role.group == "word":
            word = found
        elif found.role.group == "head":
            head = site
        else:
            return None
    return None if word is None or head is None else (word, head)


def _two_that_differ(tensor: _Tensor) -> tuple[str, str]:
    said: dict[Role, str] = {}
    for site, found in zip(tensor.sites, tensor.found, strict=True):
        if found is not None:
            role = found.role
            said.setdefault(role, f"{role.group} ({role.fan_in} → {role.fan_out}) at '{site.name}'")
    one, other, *_ = said.values()
    return one, other


def _refuse_unplaced(tensors: Iterable[_Tensor]) -> None:
    unknown = [
        site
        for each in tensors
        for site, found in zip(each.sites, each.found, strict=True)
        if found is None
    ]
    if not unknown:
        return
    shown = ", ".join(f"'{site.name}' {site.shape} of {site.kind}" for site in unknown[:_SHOWN])
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    raise ModelError(
        f"no rule places {shown}{more}",
        expected="parameters of linear maps, embeddings, convolutions, norms and known attentions",
        do=f"say what they are: overrides={{r'{re.escape(unknown[0].leaf)}$': "
        "Role(group=..., fan_in=..., fan_out=..., lookup=...)}",
    )


def _said(tensors: list[_Tensor], overrides: Mapping[str, Role]) -> dict[str, Placement]:
    """Rows that the user decides, by name."""
    patterns = {text: _compiled(text) for text in overrides}
    require_roles(overrides)
    matched: set[str] = set()
    rows: dict[str, Placement] = {}
    for tensor in tensors:
        names = [site.name for site in tensor.sites]
        fitting = [t for t, pattern in patterns.items() if any(map(pattern.search, names))]
        matched.update(fitting)
        if fitting:
            rows[tensor.name] = _overridden(tensor, overrides[fitting[0]], fitting[0])
    for text in overrides:
        if text not in matched:
            raise ConfigError(
                f"override '{text}' matches no parameter",
                expected=f"a pattern of names such as '{tensors[0].name}'",
                do="correct or drop it",
            )
    return rows


def require_roles(overrides: Mapping[str, object]) -> None:
    """Refuse what is no Role by name; annotations alone would not."""
    for text, role in overrides.items():
        if not isinstance(role, Role):
            raise ConfigError(
                f"override '{text}': {role!r}",
                expected="a Role",
                do="write Role(group=..., fan_in=..., fan_out=..., lookup=...)",
            )


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"override '{text}': {error}",
            expected="a regular expression",
            do="escape its special characters",
        ) from None


def _overridden(tensor: _Tensor, role: Role, pattern: str) -> Placement:
    site = tensor.sites[0]
    alike = [each for each in tensor.found if each and each.role.lookup == role.lookup]
    fan_in, fan_out = _read_off(site, role)
    if alike:
        fan_in, fan_out = alike[0].role.fan_in, alike[0].role.fan_out
    given = replace(
        role,
        fan_in=fan_in if role.fan_in is None else role.fan_in,
        fan_out=fan_out if role.fan_out is None else role.fan_out,
    )
    assert given.fan_in is not None
    assert given.fan_out is not None
    if given.fan_in < 1 or given.fan_out < 1:
        raise ConfigError(
            f"override '{pattern}' for '{site.name}' {site.shape} as a map without fans",
            expected="a tensor of two axes or more, or positive fan_in and fan_out",
            do="give fan_in and fan_out, or lookup=True",
        )
    zero_row = next((each.zero_row for each in alike if each.zero_row is not None), None)
    return _row(tensor, Found(given, f"override '{pattern}'"), zero_row)


def _read_off(site: Site, role: Role) -> tuple[int, int]:
    """Fans of a tensor that is stored as (out, in, ...); 0 where it has no such axes."""
    if role.lookup:
        return 1, site.shape[-1] if site.shape else 1
    if len(site.shape) < 2:
        return 0, 0
    return math.prod(site.shape[1:]), site.shape[0]


def _pad_row(tree: Tree, site: Site) -> int | None:
    """[pad] of a model of ours, whose embedding does not mark it: it learns like any word."""
    config = getattr(tree.root, "config", None)
    row = getattr(config, "pad", None)
    words = getattr(config, "n_vocab", None)
    return row if isinstance(row, int) and words == site.shape[0] else None


def _tied_head(tree: Tree, tensors: list[_Tensor], rows: list[Placement]) -> str | None:
    """The module that applies the word embedding as an output map."""
    for tensor, row in zip(tensors, rows, strict=True):
        tie = _tie(tensor)
        if tie is not None and row.role.lookup and not row.role.head:
            return tie[1].path
    if any(row.role.group == "word" for row in rows):
        return functional_head(tree)
    return None


def _with_tie(row: Placement, tied: str, *, own: bool) -> Placement:
    """Says of the word embedding that it is the head's matrix, too.

    A head that does not ``own`` a matrix, as ours, is handed it.
    """
    listed = join(tied, "weight") in row.also
    if row.role.group != "word" or (own and not listed):
        return row
    return replace(row, reason=f"{row.reason}; the head '{tied}' takes the output multiplier")


def _width(tree: Tree, named: Mapping[str, str], rows: list[Placement], tied: str | None) -> int:
    """n: the main head's fan-in, else the residual stream's width."""
    fans = {name: row.role for row in rows for name in (row.name, *row.also)}
    for path in named:
        role = fans.get(join(path, "weight"))
        if role is not None and role.head and not role.lookup:
            return _known(role.fan_in)
        if role is not None and path == tied:  # the same matrix, seen as a lookup
            return _known(role.fan_out)
    for row in rows:
        if row.role.head and not row.role.lookup:
            return _known(row.role.fan_in)
        if tied is not None and row.role.group == "word":
            return _known(row.role.fan_out)
    return _stream_width(tree.root, rows)


def _stream_width(root: nn.Module, rows: list[Placement]) -> int:
    """Width of a body without a head: as stated, else what most maps take in."""
    for owner, name in ((getattr(root, "config", None), "hidden_size"), (root, "num_features")):
        stated = getattr(owner, name, None)
        if isinstance(stated, int) and stated > 0:
            return stated
    maps = Counter(row.role.fan_in for row in rows if not row.role.lookup)
    words = Counter(row.role.fan_out for row in rows if row.role.lookup)
    return _known((maps or words).most_common(1)[0][0])


def _known(fan: int | None) -> int:
    assert fan is not None
    return fan
