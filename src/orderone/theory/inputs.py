"""Inputs of a spec as checked tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orderone.core.errors import DataError
from orderone.theory.spec import KernelSpec

Array = npt.NDArray[Any]

MOST_PAIRS = 4096
"""(sample, position) pairs: a kernel of so many takes 128 MiB."""
MOST_WORDS = 2**63
"""Token numbers are int64."""


def patches(spec: KernelSpec) -> Float[Tensor, "b t n_patch"]:
    """The vision stem's inputs."""
    x = _array(spec.inputs, "inputs")
    if x.ndim != 3 or 0 in x.shape or x.dtype.kind not in "fiu":
        raise _shape(x, "inputs", "numbers of shape D × T × n_patch")
    numbers = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
    if not bool(torch.isfinite(numbers).all()):
        raise DataError(
            "inputs with numbers that are not finite", expected="finite numbers", do="clean them"
        )
    return _bounded(numbers)


def tokens(spec: KernelSpec, name: str = "inputs") -> Int[Tensor, "b t"]:
    """The language stem's inputs, or the decoder's ``targets``."""
    x = _array(getattr(spec, name), name)
    if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "iu":
        raise _shape(x, name, "whole numbers of shape D × T")
    low, high = int(x.min()), int(x.max())
    words = spec.n_vocab or MOST_WORDS
    if low < 0 or high >= words:
        raise DataError(
            f"token {low if low < 0 else high} in {name}",
            expected=f"tokens from 0 to {words - 1}",
            do="correct the tokens, or n_vocab",
        )
    return _bounded(torch.from_numpy(x.astype(np.int64)))


def input_kernel(spec: KernelSpec) -> tuple[Float[Tensor, "a a"], int]:
    """G^(0) as given, and T."""
    x, T = _array(spec.input_kernel, "input_kernel"), spec.positions
    assert T is not None
    if x.ndim != 2 or x.shape[0] != x.shape[1] or 0 in x.shape or x.dtype.kind not in "fiu":
        raise _shape(x, "input_kernel", "numbers of shape D·T × D·T")
    if len(x) % T:
        raise DataError(
            f"an input_kernel of {len(x)} rows with {T} positions",
            expected=f"a multiple of {T}",
            do="correct positions",
        )
    K = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
    smallest = float(torch.linalg.eigvalsh(K)[0]) if bool(torch.isfinite(K).all()) else -math.inf
    size = float(K.abs().max())
    if smallest < -1e-8 * size or float((K - K.T).abs().max()) > 1e-8 * size:
        raise DataError(
            f"an input_kernel that is not positive semidefinite (smallest eigenvalue "
            f"{smallest:.3g})",
            expected="a symmetric kernel without negative eigenvalues",
            do="correct the kernel, or give inputs",
        )
    _bounded(K.view(len(K) // T, T, len(K)))
    return K, T


def real(spec: KernelSpec, words: Int[Tensor, "b t"]) -> Bool[Tensor, "b t"] | None:
    """True for a token, not a pad; None where no pad is named."""
    return None if spec.pad is None else words != spec.pad


def _array(given: Any, name: str) -> Array:
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        # numpy has no bfloat16.
        return (given.double() if given.is_floating_point() else given).numpy()
    if isinstance(given, str | Path):
        return _file(Path(given), name)
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{name} with rows of different lengths",
            expected="a full array",
            do="give all samples the same shape, filled with pad tokens where needed",
        ) from error


def _file(path: Path, name: str) -> Array:
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(
            f"{name} '{path}' cannot be read: {why}",
            expected="an array in a .npy file, without Python objects",
            do="check the path, or save it with numpy.save",
        ) from error


def _bounded(x: Tensor) -> Tensor:
    pairs = x.shape[0] * x.shape[1]
    if pairs > MOST_PAIRS:
        raise DataError(
            f"{x.shape[0]} samples of {x.shape[1]} positions, {pairs} pairs",
            expected=f"at most {MOST_PAIRS} pairs",
            do="take fewer samples or positions",
        )
    return x


def _shape(x: Array, name: str, expected: str) -> DataError:
    shape = "×".join(map(str, x.shape)) or "no axis"
    return DataError(f"{name} of shape {shape} and type {x.dtype}", expected=expected, do="reshape")
