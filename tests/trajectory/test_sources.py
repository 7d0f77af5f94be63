"""Which checkpoints a folder, a list or a repository holds, and in which order."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from orderone.core.errors import ConfigError, DataError
from orderone.trajectory import hub
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.series import trajectory
from orderone.trajectory.sources import open_series
from orderone.trajectory.steps import steps_of
from tests.trajectory.repositories import Repository, commit_of
from tests.trajectory.series_files import (
    assert_holds,
    weights,
    write_safetensors,
    write_series,
    write_torch,
)

NAMES = [
    (["step9", "step10", "step100"], [9, 10, 100]),
    (["checkpoint-500", "checkpoint-1000"], [500, 1000]),
    (["model.1", "model.20", "model.3"], [1, 20, 3]),
    (["epoch=0-step=900", "epoch=1-step=100"], [900, 100]),
    (["ep0-ba1200", "ep1-ba2400"], [1200, 2400]),
    (["step1000-tokens4B", "step2000-tokens8B"], [1000, 2000]),
    (["pythia-70m-step1", "pythia-70m-step512"], [1, 512]),
    (["tokens-1.5B", "tokens-900M"], [1_500_000_000, 900_000_000]),
    (["iter_0000100", "iter_0000200"], [100, 200]),
    (["run7_100_a", "run7_200_a"], [100, 200]),
    (["0001", "0002", "final"], [1, 2, None]),
    (["step1", "main"], [1, None]),
    (["epoch3", "epoch12"], [3, 12]),
    (["a", "b"], [None, None]),
]


@pytest.mark.parametrize(("names", "steps"), NAMES)
def test_the_step_in_a_name(names, steps):
    assert steps_of(names) == steps


def test_the_order_can_be_said():
    names = ["a1x9", "a2x8", "a3x7"]
    assert steps_of(names, r"a(\d+)") == [1, 2, 3]
    assert steps_of(names, r"x(\d+)") == [9, 8, 7]
    assert steps_of(names, ["a3x7", "a1x9"]) == [1, None, 0]


@pytest.mark.parametrize("order", ["(", ["nowhere"], ["step1", "step1"]])
def test_an_impossible_order_is_refused(order):
    with pytest.raises(ConfigError):
        steps_of(["step1", "step2"], order)


def test_a_folder_of_folders(tmp_path):
    written = write_series(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes-2024.txt").write_text("")
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [10, 20, 100]
    assert series.findings == ()
    assert series.notes == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, written[checkpoint.step])


def test_a_folder_of_files(tmp_path):
    for step in (1, 2, 10):
        write_safetensors(tmp_path / f"model.{step}.safetensors", weights(step))
        write_torch(tmp_path / f"optimizer.{step}.pt", {"state": torch.ones(2)})
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [1, 2, 10]
    assert series.findings == ()
    assert_holds(series.checkpoints[2], weights(10))


def test_a_list_of_folders_and_files(tmp_path):
    write_series(tmp_path / "a", (30, 200))
    write_torch(tmp_path / "b" / "step100.pt", weights(100))
    paths = [tmp_path / "a" / "step200", tmp_path / "a" / "step30", tmp_path / "b" / "step100.pt"]
    series = open_series(paths)
    assert [c.step for c in series.checkpoints] == [30, 100, 200]
    assert_holds(series.checkpoints[1], weights(100))


def test_a_list_without_numbers_is_taken_as_it_stands(tmp_path):
    paths = [tmp_path / name / "model.safetensors" for name in ("start", "middle", "end")]
    for seed, path in enumerate(paths):
        write_safetensors(path, weights(seed))
    series = open_series([path.parent for path in paths])
    assert [c.name for c in series.checkpoints] == ["start", "middle", "end"]
    assert any("in the order given" in note for note in series.notes)


def test_a_number_missing_is_said(tmp_path):
    write_series(tmp_path)
    write_safetensors(tmp_path / "final" / "model.safetensors", weights())
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [10, 20, 100]
    assert series.notes == ("no step in the name, left out: 'final'",)


@pytest.mark.parametrize("what", ["nowhere", "empty", "unnumbered"])
def test_no_series_is_one_line(tmp_path, what):
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        write_safetensors(tmp_path / "unnumbered" / name / "model.safetensors", weights())
    with pytest.raises(DataError):
        open_series(tmp_path / what)


def test_a_series_of_transformers_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=17, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    for step in (5, 10):
        folder = tmp_path / f"checkpoint-{step}"
        with torch.no_grad():
            model.transformer.wte.weight.add_(1.0)
        model.save_pretrained(folder)
        # What Trainer writes beside the weights.
        torch.save({"state": {0: {"exp_avg": torch.ones(4)}}}, folder / "optimizer.pt")
        torch.save({"last_epoch": step}, folder / "scheduler.pt")
        torch.save({"python": (3,)}, folder / "rng_state.pth")
        torch.save(object, folder / "training_args.bin")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    model.save_pretrained(tmp_path)  # the last weights once more, at the top
    series = open_series(tmp_path)
    assert series.findings == ()
    assert [c.step for c in series.checkpoints] == [5, 10]
    held = dict(model.named_parameters())
    assert_holds(series.checkpoints[-1], {name: p.data for name, p in held.items()})


def test_a_series_of_our_own_training(tmp_path):
    """A run's folder: stepN/ with optimizer and generators beside, a copy of the best."""
    run = tmp_path / "run"
    for name, seed in (("step00000010", 10), ("step00000020", 20), ("best-step00000020", 20)):
        folder = run / "checkpoints" / name
        write_safetensors(folder / "model.safetensors", weights(seed))
        write_safetensors(folder / "optimizer.safetensors", {"a.exp_avg": torch.ones(3)})
        for other in ("generators-0.json", "state.json", "manifest.json"):
            (folder / other).write_text("{}")
    write_safetensors(run / "checkpoints" / ".step00000030.1f.aside" / "model.safetensors", {})
    series = open_series(run)
    assert [c.step for c in series.checkpoints] == [10, 20]
    assert series.findings == ()
    assert series.notes == ("'best-step00000020' is a copy of step 20, left out",)


def test_shards_of_our_own_training(tmp_path):
    """model/shard-R-…: the writer of one rank, and its file cut in two by hand."""
    written = weights()
    for step in (1, 2):
        folder = tmp_path / f"step{step}"
        for part in ("model", "optimizer"):
            writer = HuggingFaceStorageWriter(str(folder / part), save_distributed=True)
            save_distributed(dict(written), storage_writer=writer, no_dist=True)
    for old in (tmp_path / "step2" / "model").iterdir():
        old.unlink()
    for rank, (low, high) in enumerate(((0, 4), (4, 11)), 1):
        rows = {"embed.weight": written["embed.weight"][low:high].contiguous()}
        rest = {n: t for n, t in written.items() if n not in rows and t.ndim < 2}
        columns = {n: t for n, t in written.items() if n not in rows and t.ndim == 2}
        halves = {n: t[:, 3 * rank - 3 : 3 * rank].contiguous() for n, t in columns.items()}
        offsets = {"embed.weight": [low, 0]} | {n: [0, 3 * rank - 3] for n in halves}
        offsets |= {n: [0] * t.ndim for n, t in rest.items()}
        told = {name: {"saved_offsets": each} for name, each in offsets.items()}
        name = f"shard-{rank:05d}-model-00001-of-00001.safetensors"
        metadata = {"DCP_SHARDING_INFO": json.dumps(told)}
        save_file(rows | halves | rest, tmp_path / "step2" / "model" / name, metadata=metadata)
    series = open_series(tmp_path)
    assert series.findings == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, written)


@pytest.mark.parametrize("keep", [True, False])
def test_revisions_of_a_repository_one_at_a_time(tmp_path, monkeypatch, keep):
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    written = write_series(tmp_path / "hub")
    for step in written:
        write_torch(tmp_path / "hub" / f"step{step}" / "pytorch_model.bin", weights())
    remote = Repository(tmp_path / "hub", cache=cache)
    series = open_series("hf:someone/model", remote=remote, keep=keep)
    assert [c.step for c in series.checkpoints] == [10, 20, 100]
    assert remote.fetched == remote.reads == []  # nothing is downloaded before it is read
    for checkpoint in series.checkpoints:
        assert checkpoint.stamp == commit_of(checkpoint.name)
        assert_holds(checkpoint, written[checkpoint.step])
        checkpoint.close()
        assert list(temporary.iterdir()) == []
    used = [(f"step{step}", "model.safetensors") for step in (10, 20, 100)]
    assert remote.fetched == (used if keep else [])
    assert [(revision, name) for revision, name, _, _ in remote.reads] == ([] if keep else used)
    assert cache.exists() == keep


def test_what_was_matched_in_revisions_is_said(tmp_path, monkeypatch):
    write_series(tmp_path / "hub")
    other = {f"module.{name}": each for name, each in weights(20).items()} | {
        "ids": torch.arange(3)
    }
    write_safetensors(tmp_path / "hub" / "step20" / "model.safetensors", other)
    monkeypatch.setattr(hub, "Hub", lambda: Repository(tmp_path / "hub"))
    found = trajectory("hf:someone/model")
    assert found.steps == (10, 20, 100)
    assert {
        "not weights, left out: 'ids'",
        "wrappers' prefixes taken off in 1 checkpoints",
        "no step in the name, left out: 'main'",
    } <= set(found.notes)


def test_a_revision_that_cannot_be_had_is_a_finding(tmp_path):
    write_series(tmp_path / "hub")
    (tmp_path / "hub" / "step20" / "model.safetensors").unlink()
    series = open_series("someone/model", remote=Repository(tmp_path / "hub"), keep=False)
    series.checkpoints[0].tensors()
    with pytest.raises(UnreadableError, match="no weights"):
        series.checkpoints[1].tensors()
