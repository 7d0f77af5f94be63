"""Small networks with inputs for the experiments on kernels: two samples of four positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orderone.core.generators import generator_for
from orderone.theory.spec import KernelSpec, parse_spec

PATHS = {"Q": 1 / 2, "K": 1 / 2, "V": 1 / 2, "U": 1 / 3, "W": 2 / 5, "X": 8 / 5}
"""C_G of attention and MLP in the paper's vision runs, [DYZ23] §II.1."""


def patches(D: int = 2, T: int = 4, n_patch: int = 16) -> Tensor:
    """Independent unit normals."""
    generator = generator_for(0, "patches")
    return torch.randn(D, T, n_patch, generator=generator, dtype=torch.float64)


def vision(C: dict[str, float], **settings: Any) -> KernelSpec:
    """Over patches of unit normals, bidirectional."""
    return parse_spec({"stem": "vision", "inputs": patches().tolist(), "C": C, **settings})


def language(C: dict[str, float], **settings: Any) -> KernelSpec:
    """Over words of which some repeat, causal."""
    words = [[0, 1, 2, 1], [3, 1, 4, 0]]
    own = {"stem": "language", "inputs": words, "causal": True, "C": C}
    return parse_spec({**own, **settings})
