"""timm without torchvision, which it imports at once and which models do not need.

torchvision comes built for one torch: beside a CPU build of torch its operators are missing, and
then not even ``import transformers`` works. Models take two things of it, a class that none of
ours uses and the names of interpolations; stand-ins are enough, and are gone once timm is there.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pytest

Interpolation = enum.Enum(
    "Interpolation",
    {
        name.replace("-", "_").upper(): name
        for name in ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
    },
)


class _StandIn(ModuleType):
    """A module of which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Interpolation if name == "InterpolationMode" else type(name, (), {})


class _Finder:
    """Finds torchvision, and all that is in it, as stand-ins."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        inside = name.partition(".")[0] == "torchvision"
        return ModuleSpec(name, _Finder, is_package=True) if inside else None  # pyright: ignore

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def timm_or_skip() -> ModuleType:
    """timm; the test is skipped where it is not installed."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    if "timm" in sys.modules or find_spec("torchvision") is not None:
        return importlib.import_module("timm")
    sys.meta_path.insert(0, _Finder)  # pyright: ignore
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(_Finder)  # pyright: ignore
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
