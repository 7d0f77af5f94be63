"""Every kind of wrong file is found, and only that one; nothing in a file is executed."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.sources import open_series
from orderone.trajectory.values import non_finite
from tests.trajectory.series_files import (
    assert_holds,
    weights,
    write_safetensors,
    write_series,
    write_torch,
)


def found(path):
    return [(each.checkpoint, each.kind) for each in open_series(path).findings]


def series_with(tmp_path, damage):
    """Three checkpoints, the middle one damaged; the others must still read."""
    written = write_series(tmp_path)
    damage(tmp_path / "step20" / "model.safetensors")
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [10, 100]
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, written[checkpoint.step])
    (finding,) = series.findings
    assert finding.checkpoint == "step20"
    assert "\n" not in finding.detail
    return finding


def cut(count):
    return lambda path: os.truncate(path, count if count >= 0 else path.stat().st_size + count)


@pytest.mark.parametrize("count", [0, 5, 8, 40, -1, -300])
def test_truncated(tmp_path, count):
    assert series_with(tmp_path, cut(count)).kind == "truncated"


def header(content):
    """Another header over the same tensors."""

    def damage(path):
        data = path.read_bytes()
        old = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = content(old) if callable(content) else content
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
        tail = data[8 + int.from_bytes(data[:8], "little") :]
        path.write_bytes(len(text).to_bytes(8, "little") + text + tail)

    return damage


def entry(**fields):
    return header(lambda old: old | {"scale": old["scale"] | fields})


def again(old):
    """The first entry twice, both times the same."""
    name = next(iter(old))
    return f"{{{json.dumps(name)}: {json.dumps(old[name])}, {json.dumps(old)[1:]}".encode()


def renamed(old, name, other):
    return {other if each == name else each: value for each, value in old.items()}


UNREADABLE = {
    "no JSON": header(b"{" + b" " * 40),
    "no object": header(b"[1, 2]"),
    "deep": header(b'{"a":' + b"[" * 100_000),
    "huge number": header(b'{"a":' + b"9" * 10_000 + b"}"),
    "twice": header(lambda old: again(old)),
    "lone surrogate": header(lambda old: renamed(old, "scale", "\ud800")),
    "not UTF-8": header(b'{"\xff": 1}'),
    "dtype": entry(dtype="F3"),
    "dtype is a list": entry(dtype=["F32"]),
    "negative": entry(shape=[-1]),
    "boolean": entry(shape=[True]),
    "float": entry(shape=[1.0]),
    "offsets": entry(data_offsets=[0]),
    "overlap": header(lambda old: old | {"copy": old["scale"]}),
    "hole": header(lambda old: {n: e for n, e in old.items() if n != "layers.0.norm.weight"}),
    "bytes after the end": lambda path: path.open("ab").write(b"0000"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "another format": lambda path: path.write_bytes(b"\x10" + b"\0" * 7 + b"not a header at all"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_unreadable(tmp_path, kind):
    assert series_with(tmp_path, UNREADABLE[kind]).kind == "unreadable"


@pytest.mark.parametrize("shape", [[2], [1 << 62, 1 << 62], [10**12]])
def test_shape_that_does_not_fit_its_bytes(tmp_path, shape):
    finding = series_with(tmp_path, entry(shape=shape))
    assert finding.kind == "shape"
    assert "its offsets give 4" in finding.detail


def test_offsets_beyond_the_end(tmp_path):
    far = entry(shape=[1 << 40], data_offsets=[0, 1 << 42])
    assert series_with(tmp_path, far).kind in ("truncated", "unreadable")


def test_shape_unlike_the_others(tmp_path):
    other = weights() | {"scale": torch.ones(2)}
    finding = series_with(tmp_path, lambda path: write_safetensors(path, other))
    assert finding.kind == "shape"
    assert "'scale' is 2, elsewhere a scalar" in finding.detail


def test_tensor_missing(tmp_path):
    less = {name: each for name, each in weights().items() if name != "scale"}
    finding = series_with(tmp_path, lambda path: write_safetensors(path, less))
    assert (finding.kind, finding.detail) == ("shape", "it lacks 'scale' of 6 tensors")


def test_folder_without_weights(tmp_path):
    finding = series_with(tmp_path, lambda path: path.rename(path.with_name("optimizer.pt")))
    assert finding.kind == "unreadable"
    assert "no weights" in finding.detail


def test_file_that_may_not_be_read(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    assert series_with(tmp_path, lambda path: path.chmod(0)).kind == "unreadable"


def sharded(folder, places, *, write=("a", "b")):
    folder.mkdir()
    for name in write:
        save_file({name: torch.ones(3)}, folder / f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards(tmp_path):
    good = {"a": "a.safetensors", "b": "b.safetensors"}
    sharded(tmp_path / "step1", good)
    sharded(tmp_path / "step2", good)
    sharded(tmp_path / "step3", good, write=("a",))
    sharded(tmp_path / "step4", good | {"c": "b.safetensors"})
    sharded(tmp_path / "step5", {"a": "../step1/a.safetensors"})
    sharded(tmp_path / "step6", {"a": 3})
    sharded(tmp_path / "step7", {})
    sharded(tmp_path / "step9", {"a": "\ud800"})
    sharded(tmp_path / "step10", {"a": "x" * 9999})
    for number in (1, 3):
        shard = tmp_path / "step8" / f"model-{number:05d}-of-00003.safetensors"
        write_safetensors(shard, {"ab"[number // 2]: torch.ones(3)})
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [1, 2]
    assert {(f.checkpoint, f.kind) for f in series.findings} == {
        ("step3", "missing-shard"),
        ("step4", "missing-shard"),
        ("step5", "unreadable"),
        ("step6", "unreadable"),
        ("step7", "unreadable"),
        ("step8", "missing-shard"),
        ("step9", "unreadable"),
        ("step10", "unreadable"),
    }


@pytest.mark.parametrize("old", [False, True])
def test_a_name_that_cannot_be_printed(tmp_path, old):
    write_torch(tmp_path / "step1.pt", {"a\ud800\n": torch.ones(2)}, old=old)
    (finding,) = open_series(tmp_path).findings
    assert finding.kind == "unreadable"
    assert finding.detail.isprintable()


class Runs:
    """A pickle that would make a folder when loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("suffix", ["pt", "bin", "ckpt"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, suffix, old):
    trap = tmp_path / "sprung"
    for step in (1, 2, 3):
        value = weights() | ({"x": Runs(trap)} if step == 2 else {})
        write_torch(tmp_path / f"step{step}.{suffix}", value, old=old)
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [1, 3]
    (finding,) = series.findings
    assert (finding.checkpoint, finding.kind) == ("step2", "unreadable")
    assert "mkdir" in finding.detail
    assert not trap.exists()
    torch.load(tmp_path / f"step2.{suffix}", weights_only=False)
    assert trap.exists()  # the trap was a real one


def test_metadata_of_dcp_that_would_run_code_is_refused(tmp_path):
    trap = tmp_path / "sprung"
    folder = tmp_path / "step1"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(trap)))
    assert found(tmp_path) == [("step1", "unreadable")]
    assert not trap.exists()


def test_objects_in_npz_are_refused(tmp_path):
    trap = tmp_path / "sprung"
    objects = np.empty(1, dtype=object)
    objects[0] = Runs(trap)
    np.savez(tmp_path / "step1.npz", a=objects)
    assert found(tmp_path) == [("step1", "unreadable")]
    assert not trap.exists()


BOMBS = {
    "memo": b"\x80\x02}r\xff\xff\xff\x00.",  # a memo of 2²⁴ slots
    "vast memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "bytes": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
    "text": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"x.",
    "frame": b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"N.",
    "long": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "array": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"x.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_few_bytes_cannot_ask_for_gigabytes(tmp_path, kind, memory_under):
    with zipfile.ZipFile(tmp_path / "step1.pt", "w") as archive:
        archive.writestr("step1/data.pkl", BOMBS[kind])
    with memory_under(8 << 20):
        (finding,) = open_series(tmp_path).findings
    assert finding.kind == "unreadable"
    assert "MemoryError" not in finding.detail


def test_a_compressed_array_that_would_unpack_to_gigabytes(tmp_path, memory_under):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    npy = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(tmp_path / "step1.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy + bytes(100_000))
    with memory_under(8 << 20):
        assert found(tmp_path) == [("step1", "truncated")]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("count", [0, 3, 30, 500, -1, -200])
def test_truncated_torch_files(tmp_path, count, old):
    for step in (1, 2):
        path = write_torch(tmp_path / f"step{step}.pt", weights(), old=old)
    cut(count)(path)
    (finding,) = open_series(tmp_path).findings
    assert finding.checkpoint == "step2"
    assert finding.kind in ("truncated", "unreadable")
    if count < 0:
        assert finding.kind == "truncated"


def test_file_that_shrinks_while_it_is_read(tmp_path):
    write_series(tmp_path)
    checkpoint = open_series(tmp_path).checkpoints[0]
    os.truncate(tmp_path / "step10" / "model.safetensors", 100)
    checkpoint.close()
    with pytest.raises(UnreadableError) as caught:
        checkpoint.read("scale", 0, 1)
    assert caught.value.kind == "truncated"


def test_steps_that_stand_twice(tmp_path):
    write_series(tmp_path, (10, 20))
    write_safetensors(tmp_path / "step020" / "model.safetensors", weights())
    series = open_series(tmp_path)
    assert [c.step for c in series.checkpoints] == [10, 20]
    assert [f.kind for f in series.findings] == ["duplicate"]


def test_steps_that_jump_back(tmp_path):
    for step, inside in ((1, 1), (2, 2), (3, 1), (4, 4)):
        write_torch(tmp_path / f"step{step}.pt", {"model": weights(step), "step": inside})
    assert found(tmp_path) == [("step3", "off-path")]


def test_where_a_value_is_not_finite():
    values = torch.ones(4, 5)
    values[2, 3], values[3, 1], values[3, 2] = torch.nan, torch.inf, -torch.inf
    flat = values.reshape(-1)
    assert non_finite(flat[:13]) is None
    first, second = non_finite(flat[10:15], 10), non_finite(flat[15:], 15)
    finding = (first + second).finding("step1", "w", (4, 5))
    assert finding.kind == "non-finite"
    assert finding.detail == "1 NaN, 2 infinite in 'w', the first at [2, 3]"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_values_that_are_not_finite_in_short_formats(dtype):
    values = torch.tensor([1.0, torch.inf, torch.nan]).to(dtype)
    where = non_finite(values)
    assert (where.nan, where.infinite, where.first) == (1, 1, 1)


def test_a_lying_length_allocates_nothing(tmp_path, memory_under):
    content = bytearray(save(weights()))
    content[:8] = (1 << 62).to_bytes(8, "little")
    (tmp_path / "step1.safetensors").write_bytes(content)
    with memory_under(1 << 20):
        assert found(tmp_path) == [("step1", "truncated")]
