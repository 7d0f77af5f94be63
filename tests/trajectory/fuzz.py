"""Damaged checkpoints by the thousand: each must end in weights or in a clean finding.

    python -m tests.trajectory.fuzz 100000 [SEED]

A case takes a sound checkpoint, damages a header, an index or a length in it, opens it as a series
beside a sound one, and reads every tensor. A traceback, a hang of ten seconds, more memory than the
bound, or a finding that is not one line of a known kind ends the run and names the case's seed.
"""

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as save_distributed

from orderone.trajectory.findings import Kind, UnreadableError
from orderone.trajectory.sources import open_series
from tests.trajectory.series_files import weights, write_torch

BOUND = 16 << 20  # bytes that Python may allocate in one case
ADDRESSES = 2 << 30  # bytes of address space beyond what the process begins with
KINDS = set(get_args(Kind))
NASTY_INTEGERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]
NASTY_VALUES: list[Any] = [
    *NASTY_INTEGERS,
    *(
        -1,
        -(2**63),
        10**30,
        1.5,
        1e400,
        True,
        None,
        "",
        "F32",
        "../x",
        "a\0b",
        "\ud800",
        "x" * 9999,
    ),
    *([], {}, [[]], [-1], [0, -1], [1 << 62] * 3, [2**40], [0] * 100, {"a": 1}),
]
Damage = Callable[[bytes, random.Random], bytes]


class HangError(BaseException):
    """Not an Exception, so that no reader can catch it."""


# Ways to damage ----------------------------------------------------------------------------------


def bytes_damaged(content: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, cut, doubled, inserted, or made extreme integers."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        reach = min(len(data), at + chance.choice((1, 4, 8, 64)))
        kind = chance.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = chance.choice((0, 1, 127, 128, 255, 10, 34, 46, 91, 123, 125))
        elif kind == 2:
            data[at:reach] = b""
        elif kind == 3:
            data[at:at] = data[at:reach]
        elif kind == 4:
            data[at:at] = chance.randbytes(chance.choice((1, 3, 8)))
        elif kind == 5:
            size = chance.choice((2, 4, 8))
            value = chance.choice(NASTY_INTEGERS) % (1 << 8 * size)
            data[at : at + size] = value.to_bytes(size, chance.choice(("little", "big")))
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


def value_damaged(value: Any, chance: random.Random) -> Any:
    """Somewhere in a JSON value, another value, key or entry."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        kind = chance.randrange(8)
        rest = {name: each for name, each in value.items() if name != key}
        if kind == 0:
            return rest
        if kind == 1:
            return rest | {str(chance.choice(NASTY_VALUES)): value[key]}
        if kind == 2:
            return value | {key: value[chance.choice(list(value))]}
        return value | {key: value_damaged(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return [*value[:at], value_damaged(value[at], chance), *value[at + 1 :]]
    if isinstance(value, int) and chance.random() < 0.4:
        return value + chance.choice((-4, -1, 1, 4, 8))
    return chance.choice(NASTY_VALUES)


def json_damaged(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return bytes_damaged(content, chance)
    value = json.loads(content)
    for _ in range(chance.choice((1, 1, 2))):
        value = value_damaged(value, chance)
    return json.dumps(value).encode()


def header_damaged(content: bytes, chance: random.Random) -> bytes:
    """A safetensors file with another header, and most often the length that fits it."""
    length = int.from_bytes(content[:8], "little")
    header = json_damaged(content[8 : 8 + length], chance)
    told = len(header) if chance.random() < 0.9 else chance.choice(NASTY_INTEGERS) % (1 << 64)
    tail = content[8 + length :]
    return told.to_bytes(8, "little") + header + (tail if chance.random() < 0.9 else tail[:-5])


# Sound checkpoints, and the file of each to damage -----------------------------------------------


def sound(folder: Path) -> list[tuple[int, Path, str, Damage]]:
    """How often, which checkpoint's folder, which of its files, and how it is damaged."""
    tensors = weights()
    names = sorted(tensors)
    single, shards = folder / "single", folder / "shards"
    single.mkdir()
    save_file(tensors, single / "model.safetensors", metadata={"step": "7"})
    shards.mkdir()
    places = {}
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: tensors[name] for name in part}, shards / f"{number}.safetensors")
        places |= dict.fromkeys(part, f"{number}.safetensors")
    index = "model.safetensors.index.json"
    (shards / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    nested = {"model": tensors, "step": 3, "optimizer": {"state": {0: torch.ones(3)}}}
    write_torch(folder / "zip" / "model.pt", nested)
    write_torch(folder / "old" / "model.bin", nested, old=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of a missing process group
        writer = FileSystemWriter(folder / "dcp", thread_count=1)
        save_distributed({"model": tensors}, storage_writer=writer, no_dist=True)
    arrays = {name: each.numpy() for name, each in tensors.items()}
    for kind, save in (("npz", np.savez), ("packed", np.savez_compressed)):
        (folder / kind).mkdir()
        save(folder / kind / "model.npz", **arrays)
    return [
        (10, single, "model.safetensors", header_damaged),
        (2, single, "model.safetensors", bytes_damaged),
        (5, shards, index, json_damaged),
        (2, shards, "1.safetensors", header_damaged),
        (3, folder / "zip", "model.pt", bytes_damaged),
        (3, folder / "old", "model.bin", bytes_damaged),
        (2, folder / "dcp", ".metadata", bytes_damaged),
        (1, folder / "dcp", "__0_0.distcp", bytes_damaged),
        (1, folder / "npz", "model.npz", bytes_damaged),
        (1, folder / "packed", "model.npz", bytes_damaged),
    ]


# One case ----------------------------------------------------------------------------------------


@contextmanager
def no_hang(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_everything(paths: list[Path]) -> str:
    """'read', or the kind of the finding; anything else raises."""
    series = open_series(paths)
    for finding in series.findings:
        assert finding.kind in KINDS, finding
        assert "\n" not in finding.detail, finding
        assert "MemoryError" not in finding.detail, finding
        finding.detail.encode()
    assert series.findings or len(series.checkpoints) == len(paths)
    for checkpoint in series.checkpoints:
        for name, info in checkpoint.tensors().items():
            name.encode()
            try:
                for start in range(0, info.numel, 64):
                    stop = min(start + 64, info.numel)
                    assert checkpoint.read(name, start, stop).shape == (stop - start,)
            except UnreadableError as error:
                return error.kind
        checkpoint.close()
    return series.findings[0].kind if series.findings else "read"


def fuzz(count: int, seed: int, folder: Path) -> Counter[str]:
    """What ``count`` damaged checkpoints ended in."""
    (folder / "sound").mkdir()
    cases = sound(folder / "sound")
    ended: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for number in range(seed, seed + count):
            chance = random.Random(number)
            _, source, name, damage = chance.choices(cases, [case[0] for case in cases])[0]
            target = folder / source.name
            if not target.exists():
                shutil.copytree(source, target)
            content = damage((source / name).read_bytes(), chance)
            (target / name).unlink()  # some file systems sync a file that is cut to be rewritten
            (target / name).write_bytes(content)
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            try:
                with no_hang(10):
                    end = read_everything([source, target] if chance.random() < 0.2 else [target])
                assert tracemalloc.get_traced_memory()[1] - held < BOUND
            except BaseException as error:
                error.add_note(f"case {number}: {target / name} damaged by {damage.__name__}")
                raise
            ended[end] += 1
            (target / name).unlink()
            shutil.copy(source / name, target / name)
    finally:
        tracemalloc.stop()
    return ended


def main(count: int, seed: int = 0) -> None:
    status = Path("/proc/self/statm").read_text().split()[0]
    most = int(status) * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        ended = fuzz(count, seed, Path(folder))
    told = {"cases": count, "seed": seed, "ended": dict(ended.most_common())}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
