"""Revisions on the Hub: read from afar to the same bits, and nothing of them on disk.

First over a folder as the remote, then with huggingface_hub's own client over a server that
answers as the Hub does.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from orderone.core.errors import DataError, MissingPackageError
from orderone.trajectory import hub
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.hub_client import Hub
from orderone.trajectory.ranged import Entry, RangedFiles, Windows
from orderone.trajectory.series import trajectory
from orderone.trajectory.sources import open_series
from tests.trajectory.repositories import NAME, Repository, commit_of, digest, served
from tests.trajectory.series_files import (
    assert_holds,
    write_safetensors,
    write_series,
    write_torch,
)

STEPS = (10, 20, 30, 40)
LEAST = 64 << 10  # what a read that jumps fetches
MEMORY = 16 << 20


def large(seed, rows=400):
    """Weights of 3 MB and more whose names are in another order than they are made in."""
    generator = torch.Generator().manual_seed(7)
    start = {
        "layers.1.mlp.weight": torch.randn(rows, 600, generator=generator),
        "embed.weight": torch.randn(501, 300, generator=generator),
        "layers.0.mlp.weight": torch.randn(600, 401, generator=generator),
        "layers.0.mlp.bias": torch.randn(77, generator=generator),
        "layers.0.norm.weight": torch.ones(401),
        "scale": torch.tensor(2.0),
    }
    generator.manual_seed(seed)
    return {
        name: each + 1e-2 * seed * torch.randn(each.shape, generator=generator)
        for name, each in start.items()
    }


def write_sharded(folder, tensors, suffix):
    write, stem = {
        "safetensors": (write_safetensors, "model"),
        "bin": (write_torch, "pytorch_model"),
    }[suffix]
    names = sorted(tensors)
    shards = {f"{stem}-0000{i + 1}-of-00002.{suffix}": names[i::2] for i in range(2)}
    for shard, own in shards.items():
        write(folder / shard, {name: tensors[name] for name in own})
    places = {name: shard for shard, own in shards.items() for name in own}
    index = folder / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))


def write_npz(folder, tensors, save):
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "model.npz", **{name: each.numpy() for name, each in tensors.items()})


def write_ranked(folder, tensors):
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save_distributed(dict(tensors), storage_writer=writer, no_dist=True)


FORMATS = {
    "safetensors": lambda at, t: write_safetensors(at / "model.safetensors", t),
    "sharded": lambda at, t: write_sharded(at, t, "safetensors"),
    "bin": lambda at, t: write_torch(at / "pytorch_model.bin", t),
    "sharded bin": lambda at, t: write_sharded(at, t, "bin"),
    "nested pt": lambda at, t: write_torch(at / "model.pt", {"model": t, "step": 3}),
    "old pt": lambda at, t: write_torch(at / "model.pt", t, old=True),
    "npz": lambda at, t: write_npz(at, t, np.savez),
    "compressed npz": lambda at, t: write_npz(at, t, np.savez_compressed),
    "distributed": lambda at, t: save_distributed(
        t, storage_writer=FileSystemWriter(at), no_dist=True
    ),
    "ranked": write_ranked,
}


def write(folder, form="safetensors", steps=STEPS, rows=400):
    for step in steps:
        (folder / f"step{step}").mkdir(parents=True)
        FORMATS[form](folder / f"step{step}", large(step, rows))
    return folder


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.fixture
def over(monkeypatch):
    """trajectory over a remote."""

    def read(remote, **options):
        monkeypatch.setattr(hub, "Hub", lambda: remote)
        return trajectory(NAME, **{"keep": False, "memory": MEMORY, **options})

    return read


def told(found):
    """All that a series tells, without the notes on what other revisions there are."""
    return json.dumps({**found.as_json(), "notes": []})


class Writes:
    """Files that Python opens to write to."""

    def __init__(self):
        self.watching = False
        self.names = []
        sys.addaudithook(self._hook)  # cannot be taken off again

    def _hook(self, event, arguments):
        if self.watching and event == "open":
            name, mode, flags = arguments
            if (mode and set(mode) & set("wax+")) or (flags & (os.O_WRONLY | os.O_RDWR)):
                self.names.append(str(name))


WRITES = Writes()


@pytest.fixture
def writes():
    WRITES.names.clear()
    WRITES.watching = True
    yield WRITES.names
    WRITES.watching = False


# Over a folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
@pytest.mark.parametrize("form", FORMATS)
def test_what_is_read_from_afar_gives_the_same_bits(tmp_path, over, writes, form, pairs):
    folder = write(tmp_path / "hub", form)
    here = trajectory(folder, pairs=pairs, memory=MEMORY)
    assert here.steps == STEPS
    assert here.findings == ()
    remote = Repository(folder)
    writes.clear()
    there = over(remote, pairs=pairs)
    assert told(there) == told(here)
    assert writes == []
    assert remote.fetched == []


@pytest.mark.parametrize("form", FORMATS)
def test_each_byte_is_fetched_about_once(tmp_path, over, form):
    """Beside the bytes themselves: a look at each tensor's head, and turns aside for small ones."""
    folder = write(tmp_path / "hub", form, steps=(10, 20), rows=16_000)
    remote = Repository(folder)
    over(remote)
    for step in (10, 20):
        whole = size(folder / f"step{step}")
        assert 0.99 * whole <= remote.bytes_read[f"step{step}"] <= 1.1 * whole


def test_opening_looks_at_tables_alone(tmp_path):
    """A request for each of a thousand tensors, before the first is read, would take minutes."""
    many = {f"layers.{i}.mlp.weight": torch.randn(100, 200) for i in range(200)}
    for step, (name, writer) in enumerate(
        {"pytorch_model.bin": write_torch, "model.safetensors": write_safetensors}.items()
    ):
        writer(tmp_path / "hub" / f"step{step}" / name, many)
    remote = Repository(tmp_path / "hub")
    for checkpoint in open_series(NAME, remote=remote, keep=False).checkpoints:
        assert len(checkpoint.tensors()) == 200
        assert sum(revision == checkpoint.name for revision, *_ in remote.reads) <= 4
        assert remote.bytes_read[checkpoint.name] < 5 * LEAST
        assert_holds(checkpoint, many)


def test_windows_on_a_file_show_its_bytes_and_keep_within_their_bound():
    """Reads of any kind and order over files of any size, some of them announced."""
    rng = random.Random(3)
    contents = [rng.randbytes(rng.choice([1, 5_000, 2_000_000, 3_000_000])) for _ in range(20)]
    largest = 0

    def entry(content, key):
        def fetch(first, into):
            nonlocal largest
            largest = max(largest, len(into))
            into[:] = content[first : first + len(into)]

        return Entry(size=len(content), content=key, fetch=fetch)

    windows = Windows(memory=MEMORY // 4, checkpoints=3)
    entries = {str(i): entry(content, i) for i, content in enumerate(contents)}
    files = [RangedFiles(entries, windows).file(Path(name)) for name in entries]
    most = 0
    for _ in range(1_000):
        content, file = rng.choice(list(zip(contents, files, strict=True)))
        first = rng.randrange(len(content))
        for _ in range(rng.choice([1, 1, 40])):  # goes on from there, with a gap or without
            last = min(len(content), first + rng.choice([1, 30, 4_000, 100_000]))
            if rng.random() < 0.3:
                file.expect(first, last)
            assert bytes(file.bytes_at(first, last)) == content[first:last]
            whole = (last - first) // 4
            seen = file.elements(first, torch.int32, 0, whole)  # at any alignment
            assert seen.numpy().tobytes() == content[first : first + 4 * whole]
            window = file._distant._window.content
            apart = seen.data_ptr() - window.data_ptr()
            assert whole == 0 or first % 4 or 0 <= apart < len(window)  # aligned: no copy
            first = min(len(content) - 1, last + rng.choice([0, 0, 1, 100]))
            most = max(most, sum(len(each._window.content) for each in windows._held))
    assert 0.6 * windows.budget < most <= windows.budget
    assert largest <= 100_000 + windows.ahead


def test_a_read_far_from_the_bounds_of_the_file_is_refused():
    entry = Entry(size=10, content="a", fetch=lambda first, into: pytest.fail("it was asked for"))
    file = RangedFiles({"a": entry}, Windows(memory=MEMORY, checkpoints=1)).file(Path("a"))
    with pytest.raises(UnreadableError, match="promises 11"):
        file.bytes_at(3, 11)
    with pytest.raises(UnreadableError, match="offsets"):
        file.elements(-4, torch.float32, 0, 1)
    file.expect(3, 11)
    file.close()


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
@pytest.mark.parametrize("known", [True, False])
def test_revisions_that_serve_the_same_file_are_fetched_once(tmp_path, over, pairs, known):
    folder = write(tmp_path / "hub")
    FORMATS["safetensors"](folder / "step30", large(40))
    same = {digest(folder / f"step{step}" / "model.safetensors") for step in (30, 40)}
    assert len(same) == 1
    here = trajectory(folder, pairs=pairs, memory=MEMORY)
    assert [each.kind for each in here.findings] == ["duplicate"]
    remote = Repository(folder, known=known)
    assert told(over(remote, pairs=pairs)) == told(here)
    once = size(folder / "step10")
    read = sum(remote.bytes_read.values())
    if known:
        assert read <= 3 * (once + 12 * LEAST)
    else:
        assert read >= 4 * once


class KilledError(Exception):
    pass


def test_a_killed_pass_goes_on_to_the_same_bits(tmp_path, over, monkeypatch):
    monkeypatch.setattr("orderone.trajectory.one_pass._SECONDS_BETWEEN_SAVES", 0.0)
    folder, state = write(tmp_path / "hub", rows=4_000), tmp_path / "state"
    here = trajectory(folder, memory=MEMORY)
    remote, cut = Repository(folder), 0

    def stop(done, total):
        nonlocal cut
        cut = done
        if done > total / 2:
            raise KilledError

    with pytest.raises(KilledError):
        over(remote, resume=state, progress=stop)
    again = Repository(folder)
    seen = []
    found = over(again, resume=state, progress=lambda done, total: seen.append(done))
    assert told(found) == told(here)
    assert seen[0] >= cut
    whole = sum(size(each) for each in folder.iterdir())
    assert remote.bytes_read.total() + again.bytes_read.total() < 1.3 * whole
    # A revision that is another commit now begins anew.
    monkeypatch.setattr(
        "tests.trajectory.repositories.commit_of", lambda name: commit_of(name + "moved")
    )
    seen.clear()
    assert told(over(Repository(folder), resume=state, progress=lambda d, t: seen.append(d)))
    assert seen[0] < cut


def test_a_pass_goes_on_from_before_the_way_was_broken(tmp_path, over, monkeypatch):
    """What could not be downloaded today is no finding of tomorrow's run."""
    monkeypatch.setattr("orderone.trajectory.one_pass._SECONDS_BETWEEN_SAVES", 0.0)
    folder, state = write(tmp_path / "hub", rows=4_000), tmp_path / "state"
    remote = Repository(folder)

    def fail(revision, name, first):
        if remote.bytes_read.total() > sum(size(each) for each in folder.iterdir()) / 2:
            raise OSError("no network")

    remote.fail = fail
    found = over(remote, resume=state)
    assert {f.kind for f in found.findings} == {"unreadable"}
    assert found.steps == ()
    seen = []
    found = over(Repository(folder), resume=state, progress=lambda done, total: seen.append(done))
    assert told(found) == told(trajectory(folder, memory=MEMORY))
    assert seen[0] > 0.2 * seen[-1]


def damaged(folder, what):
    """One way in which step 20 is wrong."""
    place = folder / "step20"
    whole = place / "model.safetensors"
    if what == "cut":
        whole.write_bytes(whole.read_bytes()[:-1000])
    elif what == "cut bin":
        whole.unlink()
        cut = write_torch(place / "pytorch_model.bin", large(20))
        cut.write_bytes(cut.read_bytes()[:-1000])
    elif what == "code":
        whole.unlink()
        write_torch(place / "pytorch_model.bin", {"model": Path})
    elif what == "shard":
        whole.unlink()
        write_sharded(place, large(20), "safetensors")
        (place / "model-00002-of-00002.safetensors").unlink()
    elif what == "not finite":
        wrong = large(20)
        wrong["embed.weight"][-1, -1] = torch.inf
        write_safetensors(whole, wrong)
    elif what == "shape":
        write_safetensors(whole, large(20) | {"scale": torch.zeros(2)})
    elif what == "broken":
        whole.write_bytes(whole.read_bytes().replace(b'"dtype"', b'"dtyqe"'))
    return folder


@pytest.mark.parametrize(
    "what", ["cut", "cut bin", "code", "shard", "not finite", "shape", "broken"]
)
def test_what_is_wrong_with_a_file_is_found_from_afar(tmp_path, over, what):
    folder = damaged(write(tmp_path / "hub"), what)
    here = trajectory(folder, memory=MEMORY)
    there = over(Repository(folder))
    assert [(f.checkpoint, f.kind) for f in here.findings] == [("step20", here.findings[0].kind)]
    assert told(there) == told(here)


@pytest.mark.parametrize("good", [3, 8])  # the first looks, and the pass
def test_trouble_on_the_way_is_a_finding(tmp_path, over, good):
    folder = write(tmp_path / "hub")
    remote = Repository(folder)
    reads = 0

    def fail(revision, name, first):
        nonlocal reads
        reads += revision == "step30"
        if reads > good and revision == "step30":
            raise OSError("the line is dead\nand so on")

    remote.fail = fail
    found = over(remote)
    detail = "it cannot be downloaded (OSError: the line is dead and so on)"
    assert [(f.checkpoint, f.kind, f.detail) for f in found.findings] == [
        ("step30", "unreadable", detail)
    ]
    assert found.steps == (10, 20, 40)
    assert reads == good + 1  # what failed is not asked for again


def test_a_transposed_tensor_too_large_to_hold_is_refused(tmp_path, over):
    folder = tmp_path / "hub"
    for step in (1, 2):
        turned = {name: each.t() for name, each in large(step).items() if each.ndim == 2}
        write_torch(folder / f"step{step}" / "pytorch_model.bin", turned)
    here = trajectory(folder, memory=MEMORY)
    remote = Repository(folder)
    assert told(over(remote)) == told(here)  # a share of 2 MiB holds each of them
    # Nearly all of a tensor is needed for the first look at it, and once more for the pass.
    assert remote.bytes_read["step1"] <= 2 * size(folder / "step1") + 12 * LEAST
    for step in (1, 2):
        turned = {"w": torch.randn(1500, 500).t()}
        write_torch(folder / f"step{step}" / "pytorch_model.bin", turned)
    found = over(Repository(folder))
    assert {f.kind for f in found.findings} == {"unreadable"}
    assert all("keep the downloads, or allow more memory" in f.detail for f in found.findings)


def test_tensorflow_is_read_from_disk_only(tmp_path, over):
    for step in (1, 2):
        (tmp_path / "hub" / f"step{step}").mkdir(parents=True)
        for name in ("model.ckpt.index", "model.ckpt.data-00000-of-00001"):
            (tmp_path / "hub" / f"step{step}" / name).write_bytes(b"\0" * 99)
    found = over(Repository(tmp_path / "hub"))
    assert all("disk only: keep the downloads" in f.detail for f in found.findings)
    assert len(found.findings) == 2


@pytest.mark.parametrize("form", ["distributed", "ranked", "sharded", "sharded bin"])
def test_what_is_kept_has_all_its_files(tmp_path, over, form):
    folder = write(tmp_path / "hub", form)
    remote = Repository(folder, cache=tmp_path / "cache")
    assert told(over(remote, keep=True)) == told(trajectory(folder, memory=MEMORY))
    assert remote.reads == []
    assert len(remote.fetched) == sum(len(list(each.iterdir())) for each in folder.iterdir())


def test_without_the_package_a_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match="pip install huggingface_hub"):
        open_series(NAME)


# With the Hub's own client -----------------------------------------------------------------------


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
