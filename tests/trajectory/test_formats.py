"""Every format gives back, bit for bit and in any parts, what its own library wrote."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as save_distributed

from orderone.core.errors import MissingPackageError
from orderone.trajectory.sources import open_series
from tests.trajectory.series_files import (
    assert_holds,
    ordered,
    weights,
    write_safetensors,
    write_series,
    write_torch,
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def only(path):
    series = open_series(path)
    assert series.findings == ()
    return series.checkpoints[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_in_every_dtype(tmp_path, dtype):
    written = weights(dtype=dtype)
    assert_holds(only(write_safetensors(tmp_path / "step1.safetensors", written)), written)


def test_safetensors_whose_data_lies_off_its_alignment(tmp_path):
    written = {"a": torch.arange(3.0), "b": torch.arange(5.0, dtype=torch.float64)}
    content = save(written)
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length])).encode()
    header += b" " * (1 - len(header) % 2 + 2)  # an odd length
    path = tmp_path / "step1.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert_holds(only(path), written)


def test_sharded_safetensors_with_an_index(tmp_path):
    written = weights()
    names = sorted(written)
    for folder in (tmp_path / "step1", tmp_path / "step2"):
        folder.mkdir()
        places = {}
        for number, part in enumerate((names[:2], names[2:]), 1):
            file = f"model-{number:05d}-of-00002.safetensors"
            save_file({name: written[name] for name in part}, folder / file)
            places |= dict.fromkeys(part, file)
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "step2" / "model.safetensors.index.json").unlink()  # shards alone will do
    series = open_series(tmp_path)
    assert series.findings == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, written)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("nest", [None, "model", "state_dict"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_files_in_both_containers(tmp_path, old, nest, dtype):
    written = weights(dtype=dtype)
    optimizer = {"state": {0: {"exp_avg": torch.ones(3), "step": 3}}, "param_groups": [{"lr": 1.0}]}
    value = {nest: ordered(written), "optimizer": optimizer, "step": 7} if nest else written
    assert_holds(only(write_torch(tmp_path / "step7.pt", value, old=old)), written)


@pytest.mark.parametrize("old", [False, True])
def test_torch_files_with_views_and_transposes(tmp_path, old):
    base = torch.randn(6, 5, 4)
    written = {
        "sliced": base[1:3, 2:],
        "transposed": torch.randn(5, 7).t(),
        "permuted": base.permute(2, 0, 1),
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
        "row": torch.randn(1, 9)[:, 2:5],
        "empty": torch.empty(0, 4),
    }
    assert_holds(only(write_torch(tmp_path / "step1.bin", written, old=old)), written)


def test_distributed_checkpoints_of_several_pieces(tmp_path):
    written = weights() | {"layers.0.mlp.fc2.weight": torch.randn(6, 8).t().contiguous().t()}
    state = {"model": written, "optimizer": {"state": {"x": {"exp_avg": torch.ones(3)}}}, "step": 3}
    for step in (1, 2):
        writer = FileSystemWriter(tmp_path / f"step{step}", thread_count=2)
        save_distributed(state, storage_writer=writer, no_dist=True)
    series = open_series(tmp_path)
    assert series.findings == ()
    expected = {f"model.{name}": each for name, each in written.items()}
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, expected)


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save_npz):
    written = weights() | {"half": torch.randn(7).half(), "double": torch.randn(2, 3).double()}
    arrays = {name: each.numpy() for name, each in written.items()}
    if save_npz is np.savez:
        arrays["layers.0.norm.gain"] = np.asfortranarray(np.arange(12.0).reshape(3, 4))
        written["layers.0.norm.gain"] = torch.arange(12.0).reshape(3, 4).double()
    save_npz(tmp_path / "step1.npz", **arrays)
    assert_holds(only(tmp_path / "step1.npz"), written)


def test_tensorflow_where_it_is_installed(tmp_path, monkeypatch):
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    brain = np.array([1.0, -2.5], dtype=np.float32)
    arrays = {
        "encoder/block_000/kernel": kernel,
        "encoder/block_000/kernel/Adam": kernel,
        "bf16": (brain.view(np.uint32) >> 16).astype(np.uint16),
        "global_step": np.int64(3),
    }
    dtypes = {name: SimpleNamespace(name=each.dtype.name) for name, each in arrays.items()}
    dtypes["bf16"] = SimpleNamespace(name="bfloat16")
    reader = SimpleNamespace(
        get_variable_to_shape_map=lambda: {n: list(a.shape) for n, a in arrays.items()},
        get_variable_to_dtype_map=lambda: dtypes,
        get_tensor=arrays.__getitem__,
    )
    asked = []
    train = SimpleNamespace(load_checkpoint=lambda prefix: asked.append(prefix) or reader)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))
    (tmp_path / "model.ckpt-3.index").write_bytes(b"")
    (tmp_path / "model.ckpt-3.data-00000-of-00001").write_bytes(b"")
    series = open_series(tmp_path)
    assert asked == [str(tmp_path / "model.ckpt-3")]
    written = {"bf16": torch.from_numpy(brain).bfloat16()}
    written["encoder.block_000.kernel"] = torch.from_numpy(kernel)
    assert_holds(series.checkpoints[0], written)


def test_tensorflow_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "model.ckpt-3.index").write_bytes(b"")
    with pytest.raises(MissingPackageError, match="tensorflow"):
        open_series(tmp_path)


def test_reading_after_close_and_release(tmp_path):
    written = write_series(tmp_path)[10]
    checkpoint = open_series(tmp_path).checkpoints[0]
    name = "embed.weight"
    kept = checkpoint.read(name, 0, 66)
    checkpoint.release(name, 0, 66)
    checkpoint.close()
    assert torch.equal(kept, written[name].reshape(-1))
    assert_holds(checkpoint, written)
