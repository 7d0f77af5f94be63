"""Ways to call one function many times: here, in processes, or on a ray cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch

from orderone.core.errors import ConfigError, MissingPackageError

Engine = Literal["local", "ray"]
ENGINES = ("local", "ray")

Task = TypeVar("Task")
Result = TypeVar("Result")
Spread = Callable[[Sequence[Task]], Iterator[tuple[int, Result]]]
"""(index, result) of every task, in the order in which they end."""


@contextmanager
def workers(
    function: Callable[[Task], Result], *, engine: Engine = "local", processes: int = 1
) -> Generator[Spread[Task, Result]]:
    """Spreads calls of ``function``, one a task, while the block is open."""
    if engine == "ray":
        yield _on_ray(function)
    elif processes > 1:
        with _processes(function, processes) as spread:
            yield spread
    else:
        yield lambda tasks: ((index, function(task)) for index, task in enumerate(tasks))


def engine_named(name: str) -> Engine:
    """The engine of that name on a command line; refused where it is not installed."""
    if name not in ENGINES:
        raise ConfigError(
            f"--engine {name}", expected=f"one of {', '.join(ENGINES)}", do="choose one"
        )
    if name != "ray":
        return "local"
    _ray()
    return "ray"


@contextmanager
def _processes(function: Callable[[Task], Result], count: int) -> Generator[Spread[Task, Result]]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Spawned, not forked: a forked child of a process whose torch has threads may hang.
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        futures = {
            pool.submit(_by_value, function, pickle.dumps(task)): index
            for index, task in enumerate(tasks)
        }
        for future in as_completed(futures):
            yield futures[future], pickle.loads(future.result())

    try:
        yield spread
    except BaseException:
        # What was refused for one task is for the others too: none of them is begun.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _by_value(function: Callable[[Any], Any], task: bytes) -> bytes:
    """The function's result as bytes.

    torch would share each tensor's memory by an open file, of which a process may have a thousand.
    """
    return pickle.dumps(function(pickle.loads(task)))


def _on_ray(function: Callable[[Task], Result]) -> Spread[Task, Result]:
    ray = _ray()
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    remote = ray.remote(function)

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        waiting = {remote.remote(task): index for index, task in enumerate(tasks)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)

    return spread


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]  # optional
    except ImportError as error:
        raise MissingPackageError("ray", needed_for="--engine ray") from error
    return ray
