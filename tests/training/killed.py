"""Trains again and again in forked children that are killed, until one comes to its end.

Run as ``python killed.py FOLDER SEED KILLS``: forks are quick, and this process never starts the
threads that a fork would lose. Prints what a run that was never killed, and the killed one, left.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from small import config, trained

from orderone.training import sharded


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(owner: Any, name: str, call: int, *, half: bool = False) -> None:
    """The process is killed at that call of a function; ``half``: in the midst of its file."""
    original = getattr(owner, name)
    calls = 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return original(*arguments, **named)
        if half:
            original(*arguments, **named)
            path = Path(arguments[1])
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return die()

    setattr(owner, name, deadly)


def forked(work: Callable[[], object], *, after: float | None = None) -> bool:
    """Whether the child came to its end; killed ``after`` so many seconds."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed")
    return os.WIFEXITED(status)


def left(path: Path) -> dict[str, str]:
    """Hashes of all that must be equal to the bit."""
    names = [path / "records.jsonl", *path.glob("checkpoints/*/*")]
    return {
        str(name.relative_to(path)): hashlib.sha256(name.read_bytes()).hexdigest()
        for name in sorted(names)
    }


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    chosen = config(batch_size=8, micro_batch=4)
    begin = time.perf_counter()
    forked(lambda: trained(folder / "whole", chosen))
    seconds = time.perf_counter() - begin
    whole = left(folder / "whole")
    rng = random.Random(seed)
    path = folder / "killed"
    killed, ends = 0, 0
    while killed < kills or path.exists():
        after, attempt = planned(rng, kills > killed, seconds)
        ended = forked(lambda attempt=attempt: attempt(lambda: trained(path, chosen)), after=after)
        killed += not ended
        if ended:
            ends += 1
            found = left(path)
            if found != whole:
                names = sorted(set(whole.items()) ^ set(found.items()))
                raise SystemExit(f"after {killed} kills these differ: {names}")
            shutil.rmtree(path)
    sys.stdout.write(json.dumps({"killed": killed, "ends": ends}))


def planned(
    rng: random.Random, kill: bool, seconds: float
) -> tuple[float | None, Callable[[Callable[[], object]], object]]:
    """When a child is killed from outside, or the call at which it kills itself."""
    places: list[tuple[Any, str, int, bool]] = [
        (os, "fsync", 60, False),
        (os, "replace", 2, False),
        (Path, "replace", 6, False),
        (sharded, "save_file", 8, True),
        (json, "dumps", 100, False),
    ]
    place = rng.randrange(len(places) + 1)
    if not kill:
        return None, lambda work: work()
    if place == len(places):
        return rng.uniform(0.0, seconds), lambda work: work()
    owner, name, calls, half = places[place]
    call = rng.randrange(1, calls)

    def attempt(work: Callable[[], object]) -> object:
        die_at_call(owner, name, call, half=half)
        return work()

    return None, attempt


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
