"""Series large enough to be read in many ranges, in every format."""

import json

import numpy as np
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.trajectory.series_files import write_safetensors, write_torch

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


def told(found):
    """All that a series tells, without the notes on what other revisions there are."""
    return json.dumps({**found.as_json(), "notes": []})
