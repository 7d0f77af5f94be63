"""MODEL with its own weights where it has some: a trained network, not its architecture alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from orderone.core.errors import ModelError
from orderone.core.selection import Selection, selected
from orderone.experiments.sources import source
from orderone.scaling.adapters import Source, TransformersSource
from orderone.scaling.hugging import model_class

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, and how to build its architecture again from a seed."""

    name: str
    model: nn.Module
    source: Source
    folder: Path | None
    """Where its weights and its tokenizer lie; None for random weights."""

    def fresh(self, seed: int) -> nn.Module:
        """The same architecture with the weights that its own initialisation draws."""
        dtype = next(self.model.parameters()).dtype
        return self.source.build(seed=seed).to(dtype)


def loaded(name: str, *, seed: int = 0) -> Loaded:
    """The model that ``name`` stands for: trained if it is a folder that holds weights."""
    found = source(name)
    folder = Path(name).expanduser()
    trained = isinstance(found, TransformersSource) and folder.is_dir() and _has_weights(folder)
    if not trained:
        return Loaded(name=name, model=found.build(seed=seed), source=found, folder=None)
    assert isinstance(found, TransformersSource)
    return Loaded(name=name, model=_with_weights(found.config, folder), source=found, folder=folder)


def _has_weights(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in _WEIGHTS)


def _with_weights(config: Any, folder: Path) -> nn.Module:
    """The weights in the folder; none of the stack may be missing, for it would be random."""
    made: Any = model_class(config)
    logging = _quiet()
    try:
        # An explicit class and a cleaned configuration: no code of the folder's is looked for.
        model, told = made.from_pretrained(
            str(folder), config=config, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # each format raises what it likes
        raise ModelError(
            f"weights in '{folder}' that a {made.__name__} cannot load ({error})",
            expected="what save_pretrained wrote",
            do="check that config.json and the weights belong together",
        ) from error
    finally:
        logging.enable_progress_bar()
    missing = set(told["missing_keys"]) & set(selected(model, Selection()))
    mismatched = told.get("mismatched_keys") or []
    if missing or mismatched:
        first = min(missing) if missing else str(next(iter(mismatched))[0])
        raise ModelError(
            f"{len(missing) + len(mismatched)} weights that '{folder}' lacks or holds in another "
            f"shape, such as '{first}'",
            expected=f"every weight of a {made.__name__}",
            do="correct 'architectures' in config.json",
        )
    return model.eval()


def _quiet() -> Any:
    """transformers' own bar off: what we print is ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    return logging
