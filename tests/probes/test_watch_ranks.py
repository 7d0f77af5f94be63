"""Two processes write what one process alone writes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from orderone.core.record import read_records

WORKER = Path(__file__).with_name("watch_ranks.py")


def records(how: str, folder: Path, world: int) -> pl.DataFrame:
    commands = [
        [sys.executable, str(WORKER), how, str(folder), str(rank), str(world)]
        for rank in range(world)
    ]
    started = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    for each in started:
        _, errors = each.communicate(timeout=120)
        assert each.returncode == 0, errors
    return read_records(folder / "records.jsonl")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    return records("alone", tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_write_the_records_of_one(
    how: str, alone: pl.DataFrame, tmp_path: Path
) -> None:
    """Norms are over all shards, gradients over all ranks' samples, and rank 0 alone writes."""
    two = records(how, tmp_path / "run", 2)
    keys = ["step", "name", "by", "group"]
    assert two.select(keys).equals(alone.select(keys))
    assert {"gradient_norm_before_clipping", "one_minus_cosine"} <= set(two["name"])
    assert two.filter(pl.col("name") == "rank")["value"].to_list() == [0.0] * 3
    for found, expected in zip(two["value"], alone["value"], strict=True):
        # Adam's first steps divide noise by noise where a gradient is nearly zero.
        assert math.isclose(found, expected, rel_tol=1e-3)
