"""A plan on two processes is the plan on one: same table, same bits, same update."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).with_name("two_processes.py")
KINDS = ["ddp", "fsdp2", "fsdp2 from meta", "compiled"]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("two_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two gloo processes saved."""
    folder = tmp_path_factory.mktemp("processes")
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_are_one(processes: list[dict[str, Any]]) -> None:
    """One test, so that parallel workers don't each start two processes of their own."""
    module = script()
    alone = module.run(module.model_of(), module.batch())
    for each in processes:
        for kind in KINDS:
            found = each[kind]
            assert found["plan"] == alone["plan"], kind
            assert_same_bits(found["start"], alone["start"], kind)
            assert_same_update(found["end"], alone, kind)
        assert len(each["placed"]) == 5
        assert all(each["placed"].values()), each["placed"]


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor], kind: str) -> None:
    assert found.keys() == expected.keys(), kind
    assert [name for name in found if not torch.equal(found[name], expected[name])] == [], kind


def assert_same_update(end: dict[str, Tensor], alone: dict[str, Any], kind: str) -> None:
    """The change of each tensor over three steps agrees to 1e-4 of its size.

    But for round-off: a bias of K has no gradient, since the softmax does not see it.
    """
    for name, value in end.items():
        moved = float((alone["end"][name] - alone["start"][name]).norm())
        assert moved > 1e-3 or name.endswith("K.bias"), name
        error = float((value - alone["end"][name]).norm())
        assert error <= 1e-4 * moved + 1e-6, (kind, name, error)
