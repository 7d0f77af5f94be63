"""A model's modules and parameters under the names that they have without wrappers.

DDP, torch.compile, FSDP2 and checkpoint wrappers put themselves between a module and its parent;
here they are gone, whatever was wrapped, and shapes are those of whole tensors (a DTensor's shape
is the global one).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter

from orderone.core.errors import ModelError
from orderone.core.parameter_names import clean_name


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place where a parameter stands in a model; a tied one stands in several."""

    name: str
    path: str
    """Name of the module that owns it; '' for the model itself."""
    leaf: str
    owner: nn.Module
    parameter: nn.Parameter

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)

    @property
    def kind(self) -> str:
        """The owner's class."""
        return class_name(self.owner)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Modules by name, in order of registration."""

    modules: Mapping[str, nn.Module]
    contents: Mapping[str, Mapping[str, nn.Module]]
    """Children of each module, by their own names."""
    sites: tuple[Site, ...]

    @property
    def root(self) -> nn.Module:
        """The model without its wrappers."""
        return self.modules[""]

    def children(self, path: str) -> Mapping[str, nn.Module]:
        return self.contents.get(path, {})

    def siblings(self, path: str) -> dict[str, nn.Module]:
        """What stands beside a module, by full name."""
        above, _, own = path.rpartition(".")
        if not path:
            return {}
        beside = self.children(above)
        return {join(above, name): module for name, module in beside.items() if name != own}

    def in_block(self, path: str) -> bool:
        """Whether a module is, or is inside, an indexed module with modules of its own.

        A bare layer of an nn.Sequential is indexed, too, but is no block.
        """
        parts = path.split(".")
        prefixes = itertools.accumulate(parts, lambda a, b: f"{a}.{b}")
        return any(
            part.isdecimal() and bool(self.children(prefix))
            for part, prefix in zip(parts, prefixes, strict=True)
        )


def tree_of(model: nn.Module) -> Tree:
    """The tree of a model, wrapped or not."""
    modules: dict[str, nn.Module] = {}
    sites: list[Site] = []
    for path, module in model.named_modules(remove_duplicate=False):
        # By name: only training's distribution imports what knows of process groups.
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ModelError(
                "a model wrapped in FullyShardedDataParallel, which flattens its parameters",
                expected="parameters with their shapes",
                do="make the plan before wrapping, or shard with fully_shard",
            )
        # A wrapper comes before what it wraps, and gives way to it.
        path = _clean_path(path)
        modules[path] = module
        for leaf, parameter in module.named_parameters(recurse=False):
            sites.append(_site(path, leaf, module, parameter))
    contents: dict[str, dict[str, nn.Module]] = {}
    for path, module in modules.items():
        if path:
            above, _, own = path.rpartition(".")
            contents.setdefault(above, {})[own] = module
    _refuse_equal_names(sites)
    return Tree(modules=modules, contents=contents, sites=tuple(sites))


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def class_name(module: nn.Module) -> str:
    """A module's class; fully_shard puts FSDP before it."""
    return type(module).__name__.removeprefix("FSDP")


def _clean_path(path: str) -> str:
    # The cleaning works on parameters' names, whose last part is never a wrapper.
    return clean_name(f"{path}.weight").rpartition(".")[0]


def _site(path: str, leaf: str, owner: nn.Module, parameter: nn.Parameter) -> Site:
    name = join(path, leaf)
    if isinstance(parameter, UninitializedParameter):
        raise ModelError(
            f"parameter '{name}' has no shape yet",
            expected="a model whose lazy modules have seen an input",
            do="run the model once on a batch",
        )
    return Site(name=name, path=path, leaf=leaf, owner=owner, parameter=parameter)


def _refuse_equal_names(sites: list[Site]) -> None:
    first: dict[str, nn.Parameter] = {}
    for site in sites:
        if first.setdefault(site.name, site.parameter) is not site.parameter:
            raise ModelError(
                f"two parameters called '{site.name}' once wrappers' names are left out",
                expected="different names",
                do="rename the submodule 'module'",
            )
