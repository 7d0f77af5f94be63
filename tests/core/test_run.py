import json
import math
import os

import pytest

from orderone.core.errors import ConfigError, RunError
from orderone.core.record import Record
from orderone.core.run import RunFolder, new_run_path


def create(path, **config):
    return RunFolder.create(path, command="train", config=config, seed=3)


def test_a_run_folder_says_how_to_repeat_the_run(tmp_path):
    create(tmp_path / "a" / "b", width=64, rates=(0.1, 0.2), data={"name": "penn"})
    run = RunFolder.open(tmp_path / "a" / "b")
    assert run.config == {"width": 64, "rates": [0.1, 0.2], "data": {"name": "penn"}}
    assert (run.command, run.seed) == ("train", 3)
    assert run.checkpoints.is_dir()
    description = json.loads((run.path / "run.json").read_text())
    assert set(description["versions"]) == {"python", "torch", "orderone", "platform"}
    assert description["machine"]["cores"] == len(os.sched_getaffinity(0))
    parts = {"command", "config", "seed", "started", "versions", "machine", "code"}
    assert set(description) == parts


def test_records_go_through_the_folder(tmp_path):
    run = create(tmp_path / "run")
    assert run.records().height == 0
    with run.writer() as writer:
        writer.write(Record(1, "loss", 2.5))
    assert run.records().rows() == [(1, "loss", 2.5)]


def test_an_existing_folder_is_refused_but_an_empty_one_serves(tmp_path):
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty")
    with pytest.raises(RunError, match="exists and is not empty") as caught:
        create(tmp_path / "empty")
    assert "\n" not in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="exists and is not empty"):
        create(tmp_path / "file")


def test_what_json_cannot_hold_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.model\.layers\.1 is a object"):
        create(tmp_path / "run", model={"layers": [1, object()]})
    assert not (tmp_path / "run").exists()


NO_TABLE = '{"command": "train", "config": 3, "seed": 0}'


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", NO_TABLE, "[" * 100_000])
def test_what_is_no_run_folder_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError):
        RunFolder.open(tmp_path)


def test_result_is_absent_until_the_run_finishes(tmp_path):
    run = create(tmp_path / "run")
    assert run.result is None
    run.finish("diverged", {"loss": math.nan, "steps": 7})
    result = RunFolder.open(run.path).result
    assert result is not None
    assert result["status"] == "diverged"
    assert result["summary"] == {"loss": "nan", "steps": 7}


def test_new_paths_never_collide(tmp_path):
    paths = [new_run_path(tmp_path / "runs", "demo") for _ in range(5)]
    assert len(set(paths)) == 5
    for path in paths:
        create(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        new_run_path(tmp_path / "file")
