"""A bound on what Python allocates, what it writes to, and a series read over a remote."""

import os
import sys
import tracemalloc
from contextlib import contextmanager

import pytest

from orderone.trajectory import hub
from orderone.trajectory.series import trajectory
from tests.trajectory.far_series import MEMORY
from tests.trajectory.repositories import NAME


@pytest.fixture
def memory_under():
    """A block must stay under so many bytes beyond what was held before it."""

    @contextmanager
    def block(most):
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()

    return block


@pytest.fixture
def over(monkeypatch):
    """trajectory over a remote."""

    def read(remote, **options):
        monkeypatch.setattr(hub, "Hub", lambda: remote)
        return trajectory(NAME, **{"keep": False, "memory": MEMORY, **options})

    return read


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
