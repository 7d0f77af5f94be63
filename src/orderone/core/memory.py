"""Memory that is not there: one line of what torch, NumPy and Python each say in their own way."""

import torch

from orderone.core.errors import RunError

_SAID = ("allocate memory", "storage size calculation overflowed")


def out_of_memory(error: BaseException) -> RunError | None:
    """The refusal, where what failed is an allocation; torch's own for CPU is a RuntimeError."""
    text = str(error)
    bare = isinstance(error, RuntimeError) and any(said in text.lower() for said in _SAID)
    if not (bare or isinstance(error, MemoryError | torch.OutOfMemoryError)):
        return None
    return RunError(
        f"not enough memory ({text.splitlines()[0][:200] if text else 'an allocation failed'})",
        expected="a model and batches that fit",
        do="make them smaller (in training: micro_batch), or use a larger machine",
    )
