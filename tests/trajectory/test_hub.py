"""The same with huggingface_hub's own client, over a server that answers as the Hub does."""

import json
import os
import subprocess
import sys
import time

import pytest

from orderone.core.errors import DataError
from orderone.trajectory.hub_client import Hub
from orderone.trajectory.series import trajectory
from orderone.trajectory.sources import open_series
from tests.trajectory.far_series import LEAST, MEMORY, STEPS, size, told, write
from tests.trajectory.repositories import NAME, commit_of, digest, served
from tests.trajectory.series_files import (
    assert_holds,
    write_series,
)


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """No wait between attempts, no proxy, no token of who runs the tests."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin"])
def test_the_client_reads_by_range(tmp_path, over, writes, form, elsewhere):
    folder = write(tmp_path / "hub", form)
    here = trajectory(folder, memory=MEMORY)
    with served(folder, elsewhere=elsewhere) as (endpoint, answers):
        writes.clear()
        there = over(Hub(endpoint, cache=tmp_path / "cache"))
    assert told(there) == told(here)
    assert [name for name in writes if name != "/dev/null"] == []
    assert not (tmp_path / "cache").exists()
    commits = [commit_of(f"step{step}") for step in STEPS]
    api = [path for _, path, _ in answers.requests if path.startswith("/api")]
    assert sorted(api) == sorted(
        [f"/api/models/{NAME}/refs", *(f"/api/models/{NAME}/tree/{each}" for each in commits)]
    )
    rest = [each for each in answers.requests if not each[1].startswith("/api")]
    assert all(method == "GET" and wanted for method, _, wanted in rest)
    assert all(path.split("/resolve/")[1][:40] in commits for _, path, _ in rest)
    for step in STEPS:
        whole = size(folder / f"step{step}")
        assert 0.9 * whole <= answers.sent[f"step{step}"] <= whole + 12 * LEAST
    first = [path for _, path, _ in rest if not path.startswith("/direct/")]
    if elsewhere:  # the Hub is asked where a file lies; from then on its bytes are asked for there
        assert len(first) <= 16 * len(STEPS) < len(rest) or len(first) < len(rest) / 2
        tokens = {
            (path.startswith("/direct/"), headers.get("authorization"))
            for (_, path, _), headers in zip(answers.requests, answers.headers, strict=True)
        }
        assert tokens == {(False, "Bearer hf_ours"), (True, None)}


def test_the_client_keeps_downloads_in_its_cache(tmp_path, over):
    folder, cache = write(tmp_path / "hub"), tmp_path / "cache"
    here = trajectory(folder, memory=MEMORY)
    with served(folder) as (endpoint, answers):
        assert told(over(Hub(endpoint, cache=cache), keep=True)) == told(here)
        for step in STEPS:
            assert answers.sent[f"step{step}"] == size(folder / f"step{step}")
            kept = [*cache.glob(f"models--*/snapshots/{commit_of(f'step{step}')}/*")]
            assert [path.name for path in kept] == ["model.safetensors"]
            assert digest(kept[0]) == digest(folder / f"step{step}" / "model.safetensors")
        assert told(over(Hub(endpoint, cache=cache), keep=True)) == told(here)
        for step in STEPS:
            assert answers.sent[f"step{step}"] == size(folder / f"step{step}")


def only(revision, what, after=0):
    """Requests for a revision's weights are answered wrongly from the so-many-th on."""
    seen = 0

    def wrong(path, wanted, count):
        nonlocal seen
        if f"/resolve/{commit_of(revision)}/" not in path:
            return None
        seen += 1
        return what(seen - after) if seen > after else None

    return wrong


WRONG = {
    "whole": "does not read by range",
    "other range": "the server sends 'bytes",
    "other size": "the server sends 'bytes",
    "coded": "the server sends it as gzip",
    "long": "more than it was asked for",
    "cut": "cannot be downloaded",
    500: "500",
    404: "404",
    403: "403",
    416: "416",
}


@pytest.mark.parametrize("after", [0, 6])
@pytest.mark.parametrize("what", WRONG)
def test_a_server_that_answers_wrongly_is_a_finding(tmp_path, over, what, after):
    """From the first request on, and in the middle of the pass."""
    folder = write(tmp_path / "hub")
    with served(folder) as (endpoint, answers):
        answers.wrong = only("step20", lambda seen: what, after)
        found = over(Hub(endpoint))
    if what == "cut":  # each time some more has come: the end is reached
        assert told(found) == told(trajectory(folder, memory=MEMORY))
        asked = [path.split("/resolve/")[-1][:40] for _, path, _ in answers.requests]
        assert asked.count(commit_of("step20")) > asked.count(commit_of("step10"))
        return
    assert [(f.checkpoint, f.kind) for f in found.findings] == [("step20", "unreadable")]
    assert WRONG[what] in found.findings[0].detail
    assert "\n" not in found.findings[0].detail
    assert found.steps == (10, 30, 40)
    assert answers.sent["step20"] <= 3 * size(folder / "step20")


@pytest.mark.parametrize("what", [500, 503, 429, "cut"])
def test_passing_trouble_leaves_no_trace(tmp_path, over, what):
    folder = write(tmp_path / "hub")
    with served(folder) as (endpoint, answers):
        answers.wrong = only("step20", lambda seen: what if seen % 3 else None, 2)
        found = over(Hub(endpoint))
    assert told(found) == told(trajectory(folder, memory=MEMORY))


def test_a_server_that_is_gone_in_mid_pass_is_findings(tmp_path, over):
    folder = write(tmp_path / "hub")
    with served(folder) as (endpoint, answers):
        answers.wrong = lambda path, wanted, count: 503 if count > 20 else None
        found = over(Hub(endpoint))
    assert {f.kind for f in found.findings} == {"unreadable"}
    assert len(found.findings) == len(STEPS)
    assert found.steps == ()


def test_an_address_that_is_good_no_longer_is_asked_for_again(tmp_path, over):
    folder = write(tmp_path / "hub")
    with served(folder, elsewhere=True) as (endpoint, answers):
        stale = 0

        def wrong(path, wanted, count):
            nonlocal stale
            stale += path.startswith("/direct/")
            return 403 if path.startswith("/direct/") and stale % 10 == 0 else None

        answers.wrong = wrong
        found = over(Hub(endpoint))
    assert stale > 10
    assert told(found) == told(trajectory(folder, memory=MEMORY))


@pytest.mark.parametrize("keep", [True, False])
def test_a_branch_that_moves_mixes_no_weights(tmp_path, keep):
    written = write_series(tmp_path / "hub")
    with served(tmp_path / "hub") as (endpoint, answers):
        remote = Hub(endpoint, cache=tmp_path / "cache")
        series = open_series(NAME, remote=remote, keep=keep)
        refs = answers.requests[:]
        for checkpoint in series.checkpoints:
            assert_holds(checkpoint, written[checkpoint.step])
        assert [path for _, path, _ in refs] == [f"/api/models/{NAME}/refs"]
        asked = [path for _, path, _ in answers.requests[1:]]
    assert asked
    assert not any(f"step{step}" in path for path in asked for step in written)
    assert all(any(commit_of(f"step{s}") in path for s in written) for path in asked)


@pytest.mark.parametrize("keep", [True, False])
def test_what_cannot_be_listed_is_one_line(tmp_path, keep):
    write_series(tmp_path / "hub")
    with served(tmp_path / "hub") as (endpoint, _):
        for name in ("someone/else", "someone/mo--del", "-/-"):
            with pytest.raises(DataError, match="cannot be listed") as caught:
                open_series(f"hf:{name}", remote=Hub(endpoint), keep=keep)
            assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="check the name and the network") as caught:
        open_series(NAME, remote=Hub(endpoint), keep=keep)  # nobody listens there any more
    assert "\n" not in str(caught.value)


def command(endpoint, home, *arguments, **more):
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }
    code = "import sys; from orderone.cli import run; sys.exit(run(sys.argv[1:]))"
    line = [sys.executable, "-c", code, "trajectory", *arguments]
    return subprocess.run(
        line, env=environment, cwd=home, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_over_a_repository(tmp_path):
    folder, home = write(tmp_path / "hub"), tmp_path / "home"
    home.mkdir()
    (folder / "step50").mkdir()
    (folder / "step50" / "README.md").write_text("no weights here")
    here = trajectory(folder, memory=MEMORY).as_json()
    with served(folder) as (endpoint, answers):
        ran = command(endpoint, home, NAME, "--drop", "--json", "--memory", "16MiB", "--to", "run")
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    found = json.loads(ran.stdout)
    assert found["groups"] == here["groups"]
    assert found["laws"] == here["laws"]
    assert found["findings"] == [
        {
            "checkpoint": "step50",
            "kind": "unreadable",
            "detail": "no weights among the revision's files",
        }
    ]
    assert {method for method, _, _ in answers.requests} == {"GET"}
    assert [path.name for path in home.rglob("*safetensors*")] == []
    assert sum(path.stat().st_size for path in home.rglob("*")) < size(folder / "step10")


def test_the_command_where_nothing_answers(tmp_path):
    with served(write(tmp_path / "hub")) as (endpoint, _):
        pass
    ran = command(endpoint, tmp_path, NAME, "--drop", "--json")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "cannot be listed" in ran.stderr
    assert "Traceback" not in ran.stderr
