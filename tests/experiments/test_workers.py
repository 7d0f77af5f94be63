"""Spreading calls: the same results on every engine."""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from orderone.core.errors import ConfigError, MissingPackageError
from orderone.experiments.workers import engine_named, workers


def test_processes_give_what_one_process_gives() -> None:
    with workers(abs, processes=2) as spread:
        first = dict(spread([-3, 4, -5]))
        again = dict(spread([-7]))
    assert (first, again) == ({0: 3, 1: 4, 2: 5}, {0: 7})
    with workers(abs) as spread:
        assert list(spread([-3, 4, -5])) == [(0, 3), (1, 4), (2, 5)]


def halves(x: Tensor) -> list[Tensor]:
    return [x[i].clone() for i in range(len(x))]


def test_tensors_of_any_number_come_back() -> None:
    """More of them than a process may have open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 256), hard))
    try:
        with workers(halves, processes=2) as spread:
            found = dict(spread([torch.arange(200.0) + i for i in range(3)]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [each.item() for each in found[2]] == [2.0 + i for i in range(200)]


def test_what_one_call_raises_ends_them_all() -> None:
    with pytest.raises(TypeError), workers(abs, processes=2) as spread:
        list(spread(["no number"]))


def test_ray_is_given_every_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ray of this test's own: futures are their own results, and the last one ends first."""
    started: list[Any] = []

    class Function:
        def __init__(self, function: Any) -> None:
            self.function = function

        def remote(self, task: Any) -> tuple[int, Any]:
            started.append(task)
            return len(started), self.function(task)

    ray = SimpleNamespace(
        init=lambda **_: None,
        remote=Function,
        wait=lambda waiting, num_returns: (waiting[-num_returns:], waiting[:-num_returns]),
        get=lambda future: future[1],
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with workers(abs, engine="ray") as spread:
        assert list(spread([-3, 4, -5])) == [(2, 5), (1, 4), (0, 3)]
    assert started == [-3, 4, -5]


def test_what_is_missing_or_unknown_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="ray"), workers(abs, engine="ray"):
        pass
    with pytest.raises(ConfigError, match="--engine spark"):
        engine_named("spark")
