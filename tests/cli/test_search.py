"""orderone search and sweep: found, gone on with after a kill, refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orderone.cli import run
from orderone.core.run import RunFolder

RUN = """
steps = 4
batch_size = 2
evaluation_batches = 1
optimizer = {{ lr = {lr}, weight_decay = {decay} }}
model = {{ kind = "language", n = 8, H = 1, encoders = 1 }}
data = {{ corpus = "./text.txt", vocabulary = 280, T = 8 }}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the cat sat on the mat and the dog did not\n" * 200)


def config(table: str, lr: float = 4.0, decay: float = 0.01) -> str:
    Path("c.toml").write_text(RUN.format(lr=lr, decay=decay) + table)
    return "c.toml"


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def ended(folder: str) -> dict[str, float]:
    """When each trial ended, to the nanosecond."""
    trials = Path(folder, "trials").iterdir()
    return {path.name: (path / "result.json").stat().st_mtime_ns for path in trials}


def test_a_search_finds_its_optimum_and_goes_on_when_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = config("[search]\ntrials = 30\nseeds = 2\n")
    assert run(["search", name, "--to", "a", "--json"]) == 0
    found = printed(capsys)
    assert found["verdict"] == "optimum"
    losses = {(each["lr"], each["weight_decay"]): each["loss"] for each in found["trials"]}
    best = (found["lr"], found["weight_decay"])
    for lr, decay in [(2, 1), (1, 2), (2, 0.5), (0.5, 2), (1, 0.5), (0.5, 1)]:
        assert losses[best[0] * lr, best[1] * decay] > losses[best]
    assert found["seeds"][0] == losses[best]
    assert found["loss"] == pytest.approx(sum(found["seeds"]) / 2)
    trials = [path.name for path in Path("a/trials").iterdir()]
    assert len(trials) == len(losses) + 1
    assert f"lr={best[0]:g}_wd={best[1]:g}_seed=1" in trials
    assert not list(Path("a/trials").glob("*/checkpoints/step*"))

    before = ended("a")
    killed, unborn = sorted(trials)[1], sorted(trials)[-1]
    Path("a/result.json").unlink()
    Path("a/trials", killed, "result.json").unlink()
    shutil.rmtree(Path("a/trials", unborn))
    assert run(["search", name, "--to", "a", "--resume", "--json"]) == 0
    assert printed(capsys) == found
    after = ended("a")
    assert {each for each in before if before[each] != after[each]} == {killed, unborn}


def test_a_search_leaves_a_table_and_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", config("[search]\ntrials = 3\n"), "--to", "a"]) == 1
    said = capsys.readouterr().out
    assert "wd \\ lr" in said
    assert "Best so far" in said
    assert "Best so far" in Path("a/report.html").read_text()
    assert len(list(Path("a/trials").iterdir())) == 1  # two are kept for the seeds


def test_trials_that_diverge_are_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    name = config("[search]\ntrials = 2\nseeds = 1\n", lr=1e30)
    assert run(["search", name, "--to", "a", "--json"]) == 1
    found = printed(capsys)
    assert found["verdict"] == "diverged"
    assert [each["loss"] for each in found["trials"]] == [None, None]
    trial = RunFolder.open("a/trials/lr=1e+30_wd=0.01_seed=0")
    assert trial.result is not None
    assert trial.result["status"] == "failed"
    assert "nan" in trial.result["summary"]["why"]


def test_a_sweep_is_the_same_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    name = config('[sweep]\noptimizer.lr = [1.0, 1e30]\n"model.n" = [8, 16]\n')
    assert run(["sweep", name, "--to", "a", "--json"]) == 0
    found = printed(capsys)
    points = [tuple(each["point"].values()) for each in found["trials"]]
    assert points == [(1.0, 8), (1.0, 16), (1e30, 8), (1e30, 16)]
    assert [each["loss"] is None for each in found["trials"]] == [False, False, True, True]
    trial = RunFolder.open("a/trials/optimizer.lr=1_model.n=16")
    assert (trial.config["model"]["n"], trial.config["optimizer"]["lr"]) == (16, 1.0)
    assert run(["sweep", name, "--to", "b", "--processes", "2", "--json"]) == 0
    assert printed(capsys) == found
    before = ended("a")
    assert run(["sweep", name, "--to", "a", "--resume", "--json"]) == 0
    assert printed(capsys) == found
    assert ended("a") == before


@pytest.mark.parametrize(
    ("words", "table", "complaint"),
    [
        (["search"], "[search]\ntries = 3", "tries"),
        (["search"], "[search]\ntrials = 2", "search.trials = 2"),
        (["search"], "[model]", "not TOML"),
        (["search"], "[other]\nx = 1", "other"),
        (["search", "--engine", "spark"], "", "--engine spark"),
        (["search", "--engine", "ray"], "", "'ray'"),
        (["search", "--resume"], "", "no run of this configuration"),
        (["sweep"], "", "no [sweep]"),
        (["sweep"], "[sweep]\nseed = 3", "sweep.seed = 3"),
        (["sweep"], "[sweep]\nsede = [3]", "sede"),
        (["sweep"], '[sweep]\n"steps.x" = [3]', "steps.x"),
        (["sweep"], "[sweep]\nseed = [1, 1]", "twice"),
        (["sweep"], "[sweep]\nsteps = [1, -1]", "steps"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    table: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    command, *options = words
    assert run([command, config(table), *options]) == 2
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("orderone:")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert not Path("runs").exists()  # nothing is begun


def test_no_decay_has_no_doublings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", config("", decay=0.0), "--to", "a"]) == 2
    assert "weight_decay = 0" in capsys.readouterr().err
    assert not Path("a").exists()


def test_another_configuration_is_not_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    table = "[search]\ntrials = 1\nseeds = 1\n"
    assert run(["search", config(table), "--to", "a"]) == 1
    assert run(["search", config(table, lr=2.0), "--to", "a", "--resume"]) == 2
    assert "optimizer.lr = 4.0, now 2.0" in capsys.readouterr().err
    assert run(["search", config(table), "--to", "a"]) == 2
    assert "not empty" in capsys.readouterr().err
    more = "[search]\ntrials = 2\nseeds = 1\n"
    assert run(["search", config(more), "--to", "a", "--resume"]) == 1
    assert len(list(Path("a/trials").iterdir())) == 2


def test_spikes_are_set_in_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that no learning meets stops the run at its first step beyond the window."""
    rule = "window = 8, threshold = 1e-9, least = 1e-9, persistence = 1, action = 'stop'"
    name = config("", lr=1e-9, decay=0.0)
    text = Path(name).read_text().replace("steps = 4", "steps = 60")
    Path(name).write_text(f"spikes = {{ {rule} }}\n{text}")
    assert run(["train", name, "--to", "a", "--json"]) == 0
    assert 5 <= printed(capsys)["steps"] < 60
    Path(name).write_text(f"spikes = {{ action = 'roll-back' }}\n{text}")
    assert run(["train", name, "--to", "b"]) == 2
    assert "with no checkpoint_every" in capsys.readouterr().err
