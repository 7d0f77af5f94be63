"""The tensor that a module's output is about, whatever it is wrapped in."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor


def main_tensor(output: Any) -> Tensor | None:
    """Logits where the output names any, else the first floating tensor in it; None without one.

    Takes tensors, tuples, lists, mappings and dataclasses, transformers' outputs among them.
    """
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    for value in _values(output):
        found = main_tensor(value)
        if found is not None:
            return found
    return None


def _values(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(cast("Mapping[str, Any]", output).values())
    if isinstance(output, list | tuple):
        return list(cast("list[Any]", output))
    if hasattr(output, "__dataclass_fields__"):
        return [getattr(output, name) for name in output.__dataclass_fields__]
    return []
