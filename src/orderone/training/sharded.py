"""Tensors of a checkpoint: one safetensors file, or a folder of shards that ranks write together.

Shards go through torch's distributed checkpointing in its safetensors form, whose metadata is
JSON; its own format keeps metadata as a pickle, which executes when read. Either form loads on
any number of ranks.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from orderone.training.distributed import Ranks
from orderone.training.tensors import Shapes, Tensors, another_model, is_sharded


def write(folder: Path, name: str, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """``tensors`` into ``folder``: every rank its shards, or the leading rank all."""
    if is_sharded(tensors):
        # Every rank has the same of what is not sharded, the counts of steps.
        writer = HuggingFaceStorageWriter(str(folder / name), save_distributed=True)
        try:
            save(dict(tensors), storage_writer=writer)
        except CheckpointException as error:
            raise _cause(error) from error
    elif ranks.leads:
        whole = {key: each.contiguous() for key, each in tensors.items()}
        _save_file(whole, folder / f"{name}.safetensors")


def _cause(error: CheckpointException) -> BaseException:
    """What the disk said to the first rank that failed: every rank is told of every failure."""
    causes = [cause for cause, _ in error.failures.values()]
    return next((each for each in causes if isinstance(each, OSError)), error)


def read(folder: Path, name: str, like: Tensors) -> Tensors:
    """Tensors of the same names, shapes and layout as ``like``, which they may overwrite."""
    found = shapes(folder, name)
    for key in [*found, *like]:
        expected = tuple(like[key].shape) if key in like else None
        if found.get(key) != expected:
            raise another_model(folder, key, found.get(key), expected)
    plain = folder / f"{name}.safetensors"
    if plain.exists() and not is_sharded(like):
        with safe_open(plain, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if not like:
        return {}
    target = {key: torch.empty_like(each) for key, each in like.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of a missing process group
        load(target, storage_reader=_reader(folder, name))
    return target


def shapes(folder: Path, name: str) -> Shapes:
    """Shapes of all tensors, whole."""
    plain = folder / f"{name}.safetensors"
    if plain.exists():
        with safe_open(plain, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    metadata = _reader(folder, name).read_metadata().state_dict_metadata
    return {key: tuple(each.size) for key, each in metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]  # tensors alone are in this format


def _reader(folder: Path, name: str) -> HuggingFaceStorageReader:
    inner = folder / name
    return HuggingFaceStorageReader(str(inner if inner.is_dir() else folder))


def _save_file(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        # The library speaks of a full disk in an error of its own: "… (os error 28)".
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code)) from error
