"""A model that a command line names, buildable at any width, with random weights.

A folder in Hugging Face format or a transformers ``config.json`` alone, ``timm:NAME``, or
``package.module:factory``. Nothing is downloaded and no code that lies beside a configuration runs.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from orderone.core.errors import ConfigError, MissingPackageError, OrderoneError
from orderone.scaling import tasks
from orderone.scaling.hugging import model_class, read_transformers_config
from orderone.scaling.tasks import Task
from orderone.scaling.width import at_width, config_at_width

__all__ = ["Source", "at_width", "outside_source"]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A model by name, at its own width or at another."""

    name: str

    @property
    @abstractmethod
    def kind(self) -> str:
        """Whose model it is: ours, transformers, timm or factory."""

    @abstractmethod
    def make(self, width: int | None) -> nn.Module:
        """The model, drawn from torch's generators, on torch's default device."""

    def build(
        self,
        width: int | None = None,
        *,
        device: torch.device | str | None = None,
        seed: int | None = None,
    ) -> nn.Module:
        """The model at ``width``, its own where that is None; on "meta" it has no memory."""
        where = torch.get_default_device() if device is None else torch.device(device)
        with where, _drawn_from(seed, where):
            return self.make(width)

    def task(self, model: nn.Module) -> Task:
        """What the model is fed with, and its loss."""
        return tasks.task(model)


@dataclass(frozen=True, kw_only=True)
class TransformersSource(Source):
    """A model of transformers, from its configuration."""

    config: Any

    @property
    def kind(self) -> str:
        return "transformers"

    def make(self, width: int | None) -> nn.Module:
        config = self.config if width is None else config_at_width(self.config, width)
        try:
            return model_class(config)(config)
        except (ValueError, TypeError, ZeroDivisionError, RuntimeError, AttributeError) as error:
            raise ConfigError(
                f"a {type(config).__name__} that transformers cannot build ({error})",
                expected=f"a configuration for {model_class(config).__name__}",
                do="correct the configuration, or choose another width",
            ) from error


@dataclass(frozen=True, kw_only=True)
class TimmSource(Source):
    """A vision transformer of timm: ViT, DeiT, Swin."""

    @property
    def kind(self) -> str:
        return "timm"

    def make(self, width: int | None) -> nn.Module:
        create = _timm()
        name = self.name.removeprefix("timm:")
        if width is None:
            return create(name)
        with torch.device("meta"):
            base = create(name)
        return create(name, **_timm_width(base, name, width))


@dataclass(frozen=True, kw_only=True)
class FactorySource(Source):
    """A user's function of the width, or of nothing."""

    factory: Callable[..., object]

    @property
    def kind(self) -> str:
        return "factory"

    def make(self, width: int | None) -> nn.Module:
        given = () if width is None else (width,)
        try:
            model = self.factory(*given)
        except OrderoneError:
            raise
        except Exception as error:  # a user's function may fail in any way
            wanted = "an optional width" if width is None else "a width"
            raise ConfigError(
                f"factory '{self.name}' that fails when called with {width or 'nothing'} "
                f"({type(error).__name__}: {error})",
                expected=f"a function of {wanted} that returns a model",
                do="change the factory, or choose another width",
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"factory '{self.name}' returned a {type(model).__name__}",
                expected="a torch.nn.Module",
                do="name a function that returns a model",
            )
        return model


def outside_source(name: str) -> Source:
    """The source that ``name`` stands for, a model of ours excepted."""
    if name.startswith("timm:"):
        create = _timm()
        with torch.device("meta"):
            create(name.removeprefix("timm:"))  # an unknown name is refused here, not later
        return TimmSource(name=name)
    path = Path(name).expanduser()
    if "\0" not in name and path.exists():
        return TransformersSource(name=name, config=read_transformers_config(path))
    if ":" in name:
        return FactorySource(name=name, factory=_factory(name))
    raise ConfigError(
        f"model '{name}'",
        expected="a folder or config.json of transformers, preset:NAME, timm:NAME or "
        "package.module:factory",
        do="check the path or the name",
    )


@contextlib.contextmanager
def _drawn_from(seed: int | None, device: torch.device) -> Generator[None]:
    """torch's generators start from ``seed`` and are left as they were; None: as they are."""
    if seed is None:
        yield
        return
    accelerated = [device] if device.type not in ("cpu", "meta") else []
    kind = device.type if accelerated else "cuda"
    with torch.random.fork_rng(devices=accelerated, device_type=kind):
        torch.manual_seed(seed)
        yield


def _timm() -> Callable[..., nn.Module]:
    try:
        import timm  # pyright: ignore[reportMissingImports]  # optional
    except ImportError as error:
        if error.name != "timm":
            raise ConfigError(
                f"timm, which cannot be imported ({error})",
                expected="it with all that it needs, for models named timm:NAME",
                do="install a torchvision that is built for your torch, from the same place",
            ) from error
        raise MissingPackageError("timm", needed_for="models named timm:NAME") from error

    def create(name: str, **settings: Any) -> nn.Module:
        try:
            model: nn.Module = timm.create_model(name, pretrained=False, **settings)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"timm cannot build '{name}' {settings or ''} ({error})",
                expected="a name in timm.list_models(), of a ViT, DeiT or Swin for other widths",
                do="check the name and the width",
            ) from error
        return model

    return create


def _timm_width(base: nn.Module, name: str, width: int) -> dict[str, Any]:
    """embed_dim and num_heads at another width; of Swin they are of the first of its stages."""
    own = getattr(base, "num_features", None)
    stem: Any = getattr(getattr(base, "patch_embed", None), "proj", None)
    heads = _heads_by_stage(base)
    if not isinstance(own, int) or stem is None or not heads:
        raise ConfigError(
            f"'{name}', a {type(base).__name__}, has no width that is known to scale",
            expected="a ViT, DeiT or Swin",
            do="name a factory package.module:factory that takes the width",
        )
    first = int(stem.out_channels)
    if (first * width) % own:
        raise ConfigError(
            f"width {width}, at which the first stage of '{name}' would be {first * width / own:g}",
            expected="a whole number",
            do=f"take a multiple of {own // first}",
        )
    embed = first * width // own
    if all((count * width) % own == 0 for count in heads):
        heads = [count * width // own for count in heads]
    elif embed % heads[0]:
        size = first // heads[0]
        raise ConfigError(
            f"width {width} with {heads[0]} heads of size {size} at width {own}",
            expected=f"a multiple of {size * own // first}",
            do="choose another width",
        )
    staged = hasattr(base, "layers")
    return {"embed_dim": embed, "num_heads": tuple(heads) if staged else heads[0]}


def _heads_by_stage(base: nn.Module) -> list[int]:
    """Heads of the first attention of each stage; a ViT is one stage."""
    stages: Any = getattr(base, "layers", None) or [base]
    found: list[int] = []
    for stage in stages:
        counts = [m.num_heads for m in stage.modules() if isinstance(_heads_of(m), int)]
        found += counts[:1]
    return found


def _heads_of(module: nn.Module) -> object:
    return getattr(module, "num_heads", None)


def _factory(name: str) -> Callable[..., object]:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as python -m has it; last, so that nothing installed is hidden
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except OrderoneError:
        raise
    except Exception as error:  # a module may fail in any way as it is imported
        raise ConfigError(
            f"factory '{name}' cannot be imported ({type(error).__name__}: {error})",
            expected="package.module:factory",
            do="check the name; the module must lie here or on Python's path",
        ) from error
    if not callable(found):
        raise ConfigError(
            f"'{name}' is a {type(found).__name__}",
            expected="a function from a width to a model",
            do="name a function",
        )
    return found
