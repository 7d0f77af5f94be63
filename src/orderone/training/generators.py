"""States of every generator that a step may draw from, as plain JSON."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def states(device: torch.device) -> dict[str, Any]:
    """Of Python, NumPy, torch, and the device of this rank."""
    version, words, spare = random.getstate()
    numpy = np.random.get_state(legacy=False)
    numpy = {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}}
    found: dict[str, Any] = {
        "python": [version, list(words), spare],
        "numpy": {**numpy, "state": {**numpy["state"], "pos": int(numpy["state"]["pos"])}},
        "torch": _text(torch.get_rng_state()),
    }
    if device.type == "cuda":
        found["cuda"] = _text(torch.cuda.get_rng_state(device))
    return found


def restore(found: Mapping[str, Any], device: torch.device) -> None:
    """What ``states`` returned, put back."""
    version, words, spare = found["python"]
    random.setstate((version, tuple(words), spare))
    inner = found["numpy"]["state"]
    key = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**found["numpy"], "state": {**inner, "key": key}})
    torch.set_rng_state(_tensor(found["torch"]))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(_tensor(found["cuda"]), device)


def _text(state: Tensor) -> str:
    return bytes(state.numpy()).hex()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
