"""An allocation that fails is one line; any other failure is not taken for one."""

import pytest
import torch

from orderone.core.memory import out_of_memory

CPU = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: ...\nframe #0"


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU)]
)
def test_every_way_to_say_so_is_one_line(error: Exception) -> None:
    refused = out_of_memory(error)
    assert refused is not None
    assert str(refused).startswith("not enough memory (")
    assert "frame" not in str(refused)


def test_what_torch_cannot_even_count_is_too_much() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**31, 2**31)
    assert out_of_memory(caught.value) is not None


def test_other_failures_are_not() -> None:
    assert out_of_memory(RuntimeError("shapes do not match")) is None
    assert out_of_memory(ValueError("cannot allocate memory")) is None
