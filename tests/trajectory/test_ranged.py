"""Revisions read from afar, over a folder as the remote: to the same bits, nothing on disk."""

import random
import sys
from pathlib import Path

import pytest
import torch

from orderone.core.errors import MissingPackageError
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.ranged import Entry, RangedFiles, Windows
from orderone.trajectory.series import trajectory
from orderone.trajectory.sources import open_series
from tests.trajectory.far_series import (
    FORMATS,
    LEAST,
    MEMORY,
    STEPS,
    large,
    size,
    told,
    write,
    write_sharded,
)
from tests.trajectory.repositories import NAME, Repository, commit_of, digest
from tests.trajectory.series_files import (
    assert_holds,
    write_safetensors,
    write_torch,
)


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
