"""Small weights, and the ways in which trainers write them."""

from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def weights(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A transformer's names in little, with a gain, a bias and a scalar."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "embed.weight": (11, 6),
        "layers.0.attention.query.weight": (6, 6),
        "layers.0.mlp.fc1.weight": (8, 6),
        "layers.0.mlp.fc1.bias": (8,),
        "layers.0.norm.weight": (6,),
        "scale": (),
    }
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()
    }


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: each.contiguous() for name, each in tensors.items()}, path)
    return path


def write_torch(path: Path, value: object, *, old: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return path


def write_series(folder: Path, steps: tuple[int, ...] = (10, 20, 100)) -> dict[int, dict]:
    """A folder stepN/model.safetensors; what was written."""
    written = {step: weights(step) for step in steps}
    for step, tensors in written.items():
        write_safetensors(folder / f"step{step}" / "model.safetensors", tensors)
    return written


def ordered(tensors: dict[str, Tensor]) -> OrderedDict[str, Tensor]:
    return OrderedDict(tensors)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, also in formats that cannot be compared."""
    a, b = a.detach().contiguous().reshape(-1), b.detach().contiguous().reshape(-1)
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def assert_holds(checkpoint, written: dict[str, Tensor]) -> None:
    """The checkpoint has exactly these weights, whole and in parts."""
    infos = checkpoint.tensors()
    assert list(infos) == sorted(written)
    for name, tensor in written.items():
        assert infos[name].shape == tuple(tensor.shape)
        assert infos[name].dtype == tensor.dtype
        count = tensor.numel()
        assert same_bits(checkpoint.read(name, 0, count), tensor)
        cuts = [0, count // 3, count // 2, count]
        flat = tensor.detach().contiguous().reshape(-1)
        for start, stop in pairwise(cuts):
            assert same_bits(checkpoint.read(name, start, stop), flat[start:stop])
