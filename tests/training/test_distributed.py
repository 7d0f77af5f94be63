"""Two gloo processes take the steps that one takes; their checkpoints load at another size."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orderone.core.run import RunFolder
from orderone.training import checkpoint
from orderone.training.config import TrainingConfig
from orderone.training.course import train
from orderone.training.losses import mean_loss, next_word_loss

from .small import config, small, stream

SCRIPT = Path(__file__).with_name("two_ranks.py")


def launch(job: str, folder: Path, world: int = 2) -> list[tuple[int, str]]:
    """Exit code and standard error of every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), job, str(folder)],
            env={**base, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ends = [process.communicate(timeout=120)[1] for process in processes]
    return [(process.returncode, end) for process, end in zip(processes, ends, strict=True)]


def single(path: Path, *, resumes: bool = False) -> dict[str, torch.Tensor]:
    """The same run on one process; its weights."""
    model = small(dropout=0.0)
    run = RunFolder.open(path) if resumes else RunFolder.create(path, command="", config={}, seed=0)
    held_out = list(stream(batch=4, shuffle=False))[:4]
    chosen: TrainingConfig = config(steps=8, batch_size=8, micro_batch=2, checkpoint_every=4)
    train(
        model,
        [{"params": list(model.parameters())}],
        stream(batch=2),
        loss=next_word_loss,
        config=chosen,
        evaluate=lambda: mean_loss(model, held_out),
        run=run,
        resumes=resumes,
    )
    return dict(model.named_parameters())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes: whole ones, of each kind one that was cut after step 5, and one
    whose second process could not write."""
    path = tmp_path_factory.mktemp("ranks")
    jobs = "ddp-ddp,fsdp-fsdp,ddp-ddpcut:5,fsdp-fsdpcut:5,ddp-full,fsdp-full"
    for code, said in launch(jobs, path):
        assert code == 0, said
    return path


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "run"
    single(path)
    return path


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_curve_is_that_of_one_process(folder: Path, one: Path, kind: str) -> None:
    expected, found = (RunFolder.open(path).records() for path in (one, folder / kind))
    assert found.drop("value").equals(expected.drop("value"))
    assert found["value"].to_list() == pytest.approx(expected["value"].to_list(), rel=2e-5)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_weights_are_those_of_one_process(folder: Path, one: Path, kind: str) -> None:
    """A sharded checkpoint of two ranks is read by one, without a process group."""
    models = [small(), small()]
    for model, path in zip(models, (one, folder / kind), strict=True):
        checkpoint.load_weights(path / "checkpoints" / "step00000008", model)
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_ranks_is_resumed_by_one(
    folder: Path, one: Path, kind: str, tmp_path: Path
) -> None:
    """Weights, optimizer and data position: the curve goes on as if nothing had happened."""
    path = tmp_path / "run"
    path.symlink_to(folder / f"{kind}cut")
    single(path, resumes=True)
    expected, found = (RunFolder.open(each).records() for each in (one, path))
    assert found.drop("value").equals(expected.drop("value"))
    assert found["value"].to_list() == pytest.approx(expected["value"].to_list(), rel=2e-5)


def test_nothing_in_a_sharded_checkpoint_is_a_pickle(folder: Path) -> None:
    files = [path for path in (folder / "fsdp" / "checkpoints").rglob("*") if path.is_file()]
    assert len([path for path in files if path.parent.name == "model"]) > 2
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_checkpoints_of_one_are_resumed_by_two_sharded(one: Path, tmp_path: Path) -> None:
    """A plain file's tensors, each rank reading its own part."""
    shutil.copytree(one, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step00000008")
    for code, said in launch("fsdp-run", tmp_path, world=2):
        assert code == 0, said
    expected, found = (RunFolder.open(each).records() for each in (one, tmp_path / "run"))
    assert found["value"].to_list() == pytest.approx(expected["value"].to_list(), rel=2e-5)


def test_shards_of_two_are_resumed_by_three(one: Path, folder: Path, tmp_path: Path) -> None:
    """4 parts of a step cannot be shared by 3; the checkpoint of two is read by three even so."""
    source = folder / "fsdp" / "checkpoints" / "step00000008"
    for code, said in launch(f"read-{source}", tmp_path, world=3):
        assert code == 0, said
    model = small()
    checkpoint.load_weights(source, model)
    found = load_file(tmp_path / "weights.safetensors")
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name], parameter)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_full_disk_of_one_rank_ends_all_in_one_line(folder: Path, kind: str) -> None:
    said = [(folder / f"{kind}full" / f"said{rank}").read_text() for rank in range(2)]
    assert all("step00000004' cannot be written" in each for each in said)
    assert "File too large" in said[1]
    assert "\n" not in "".join(said)
    checkpoints = folder / f"{kind}full" / "checkpoints"
    assert not checkpoint.steps(checkpoints)
    assert not list(checkpoints.glob(".*.aside"))


def test_a_dead_rank_ends_the_other_with_a_message(tmp_path: Path) -> None:
    (code, said), (dead, _) = launch("ddp-dies", tmp_path)
    assert dead == -9
    assert code == 2
    assert "process 0 of 2 lost another" in said
    assert "\n" not in said.strip().splitlines()[-1]


def test_ranks_end_though_their_model_outlives_the_group(tmp_path: Path) -> None:
    """A process group must not be torn down by a model's end: it may wait for its own threads."""
    for code, said in launch("ends", tmp_path):
        assert code == 0, said
