"""A bound on what Python allocates."""

import tracemalloc
from contextlib import contextmanager

import pytest


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
