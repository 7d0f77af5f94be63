"""A killed run ends as one never killed, to the bit; damaged and foreign checkpoints are seen."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orderone.core.errors import ConfigError, RunError
from orderone.core.run import RunFolder
from orderone.training import checkpoint, sharded
from orderone.training.config import TrainingConfig
from orderone.training.resume import refuse_other

from .small import config, small, stream, trained

KILLED = Path(__file__).with_name("killed.py")


def weights(path: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / f"step{step:08d}" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stopped(path: Path, chosen: TrainingConfig, at: int, **more: Any) -> None:
    """A run in ``path`` that loses its power after step ``at``: nothing is put in order."""

    def lose_power(event: Any) -> None:
        if event.step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(path, chosen, observers=[lose_power], **more)


def test_killed_at_random_moments_it_ends_as_one_never_killed(tmp_path: Path) -> None:
    """SIGKILL from outside, at syncs and renames, and amid a file of a checkpoint."""
    done = subprocess.run(
        [sys.executable, str(KILLED), str(tmp_path), "1", "12"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] == 12
    assert found["ends"] >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"name": "sgd", "lr": 0.05, "settings": {"momentum": 0.9}}},
        {"optimizer": {"name": "Adafactor", "lr": 0.05}},
        {"optimizer": {"name": "nadam", "lr": 0.01}},
        {"precision": "float16", "batch_size": 8, "micro_batch": 4},
        {"precision": "bfloat16", "deterministic": True},
        {"checkpoint_every": 7, "keep": 1},
    ],
)
def test_whatever_the_run_it_resumes_to_the_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = config(**changes)
    trained(tmp_path / "whole", chosen)
    stopped(tmp_path / "cut", chosen, at=17)
    outcome = trained(tmp_path / "cut", chosen)
    assert outcome.resumed_from == (14 if chosen.keep == 1 else 15)
    assert same(weights(tmp_path / "whole", 24), weights(tmp_path / "cut", 24))
    records = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "cut")]
    assert records[0] == records[1]


def test_without_any_checkpoint_it_starts_again(tmp_path: Path) -> None:
    chosen = config(checkpoint_every=None)
    trained(tmp_path / "whole", chosen)
    stopped(tmp_path / "cut", chosen, at=9)
    assert trained(tmp_path / "cut", chosen).resumed_from == 0
    records = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "cut")]
    assert records[0] == records[1]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_whose_hash_fails_is_passed_over(tmp_path: Path, file: str) -> None:
    chosen = config()
    trained(tmp_path / "whole", chosen)
    stopped(tmp_path / "cut", chosen, at=17)
    flipped = tmp_path / "cut" / "checkpoints" / "step00000015" / file
    data = bytearray(flipped.read_bytes())
    data[-2] ^= 1
    flipped.write_bytes(data)
    outcome = trained(tmp_path / "cut", chosen)
    assert outcome.resumed_from == 12
    assert file in outcome.damaged[0]
    assert same(weights(tmp_path / "whole", 24), weights(tmp_path / "cut", 24))
    assert checkpoint.damage(tmp_path / "cut" / "checkpoints" / "step00000024") is None


@pytest.mark.parametrize(
    "said", ["{", "[]", "{}", '{"format": "orderone checkpoint 1", "files": {}}', "[" * 100_000]
)
def test_a_manifest_that_says_nothing_is_damage(tmp_path: Path, said: str) -> None:
    (tmp_path / "manifest.json").write_text(said)
    assert "manifest.json'" in (checkpoint.damage(tmp_path) or "")


def test_the_last_k_and_the_best_are_kept(tmp_path: Path) -> None:
    outcome = trained(tmp_path / "run", config(keep=3))
    folder = tmp_path / "run" / "checkpoints"
    assert list(checkpoint.steps(folder)) == [24, 21, 18]
    assert list(checkpoint.bests(folder)) == [outcome.best_step]
    records = RunFolder.open(tmp_path / "run").records().filter(split="validation")
    lowest = records.filter(records["step"] > 0)
    assert lowest["value"].min() == outcome.best_validation
    assert outcome.best_step in lowest.filter(lowest["value"] == outcome.best_validation)["step"]


def test_best_weights_have_the_loss_that_they_were_kept_for(tmp_path: Path) -> None:
    from orderone.training.losses import mean_loss

    outcome = trained(tmp_path / "run", config(steps=20))
    model = small()
    (path,) = checkpoint.bests(tmp_path / "run" / "checkpoints").values()
    checkpoint.load_weights(path, model)
    held_out = list(stream(shuffle=False))[:3]
    assert mean_loss(model, held_out) == outcome.best_validation


def test_another_model_is_refused_and_named(tmp_path: Path) -> None:
    stopped(tmp_path / "run", config(), at=7)
    with pytest.raises(RunError, match=r"another model: shape \(8,\) of 'blocks.0.bias'"):
        trained(tmp_path / "run", config(), model=small(width=12))


def test_other_data_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    stopped(tmp_path / "run", config(), at=7)
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="saved with content="):
        trained(tmp_path / "run", config(), batches=stream(text=6))
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [6, 3]


def test_other_settings_are_refused_by_name_unless_no_number_depends_on_them() -> None:
    before = config().model_dump(mode="json")
    changed = config(optimizer={"lr": 0.1, "weight_decay": 0.1}).model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"optimizer\.lr = 0\.05, now 0\.1"):
        refuse_other(before, changed)
    refuse_other(before, config(keep=7, checkpoint_every=5).model_dump(mode="json"))


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_one_line_and_the_last_good_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config()
    trained(tmp_path / "whole", chosen)
    stopped(tmp_path / "run", chosen, at=8)
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "save_file", full_disk)
        with pytest.raises(RunError, match="No space left on device") as caught:
            trained(tmp_path / "run", chosen)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "run" / "checkpoints"
    assert list(checkpoint.steps(folder)) == [6, 3]
    assert checkpoint.damage(folder / "step00000006") is None
    assert not list(folder.glob(".*.aside"))
    trained(tmp_path / "run", chosen)
    assert same(weights(tmp_path / "whole", 24), weights(tmp_path / "run", 24))


def test_a_disk_that_fails_under_safetensors_is_named_too(tmp_path: Path) -> None:
    """Its errors are no OSErrors; a limit on the size of files stands for the full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            sharded.write(tmp_path, "model", {"a": torch.ones(3000)}, checkpoint.ALONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
