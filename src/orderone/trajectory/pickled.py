"""Pickles of state dicts, read without running anything.

As ``torch.load(weights_only=True)`` this rebuilds tensors, ordered dictionaries and plain values
and refuses every other name; here the tensors stay in the file. Only names of the table below are
ever resolved, and what they resolve to are records of ours, not torch's functions. Opcodes are
checked before the first is obeyed, since a few bytes can ask an unpickler for gigabytes.
"""

import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import torch

from orderone.trajectory.byte_files import Stretch
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.safetensors_files import naturals

STORAGES: Mapping[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "Float8_e4m3fnStorage": torch.float8_e4m3fn,
    "Float8_e5m2Storage": torch.float8_e5m2,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
_DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.complex64, torch.complex128),
)
_USUAL = 1 << 20
_LONGEST = 64 << 20  # a state dict's pickle holds names and shapes, about 200 bytes a tensor


@dataclass(frozen=True)
class Storage:
    """Bytes kept elsewhere in the container under ``key``."""

    key: str
    dtype: torch.dtype
    numel: int


@dataclass(frozen=True)
class PickledTensor:
    """A view of a storage: element offset, shape and strides."""

    storage: Storage
    offset: int
    info: TensorInfo
    strides: tuple[int, ...]


class _Inert:
    """Stands for a harmless object whose content does not matter, such as a hook table."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def unpickled(
    path: Path,
    content: Stretch,
    *,
    names: Mapping[str, Any] | None = None,
    at: int = 0,
    storages: dict[str, Storage] | None = None,
) -> tuple[Any, int]:
    """The object pickled at byte ``at`` of ``content``, and where its pickle ends.

    ``names`` are further names it may use; ``storages`` collects the storages it refers to.
    """
    try:
        pickled = _one_pickle(content, at)
        machine = _Unpickler(BytesIO(pickled), names or {}, storages)
        return machine.load(), at + len(pickled)
    except UnreadableError:
        raise
    except pickle.UnpicklingError as error:
        raise UnreadableError("unreadable", f"'{path.name}': {error}") from error
    except Exception as error:  # a wrong opcode can make the machine raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableError(
            "unreadable", f"'{path.name}' has a broken pickle ({reason})"
        ) from error


def _one_pickle(content: Stretch, at: int) -> bytes:
    """The pickle at byte ``at``; in the old container gigabytes may follow it."""
    for most in (_USUAL, _LONGEST):
        stream = BytesIO(content[at : at + most])
        try:
            _check_opcodes(stream)
        except ValueError:  # it does not end here
            if most < len(content) - at and most < _LONGEST:
                continue
            raise
        return stream.getvalue()[: stream.tell()]
    raise AssertionError("the last window returns or raises")


def _check_opcodes(stream: BytesIO) -> None:
    """Every length lies inside the pickle, and no slot of the memo is far beyond those in use."""
    slots = 0
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            slots += 1
            # torch counts its slots from one; an unpickler makes room up to the largest.
            if isinstance(argument, int) and not 0 <= argument <= slots + 16:
                raise pickle.UnpicklingError(f"memo slot {argument} of {slots}")


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, stream: BytesIO, names: Mapping[str, Any], storages: dict[str, Storage] | None
    ) -> None:
        super().__init__(stream, encoding="utf-8")
        self._names = names
        self._storages = storages

    def find_class(self, module: str, name: str, /) -> Any:
        full = f"{module}.{name}"
        allowed = _ALLOWED.get(full, self._names.get(full))
        if allowed is None:
            raise pickle.UnpicklingError(
                f"its pickle asks for '{full}', which is no part of a state dict: refused"
            )
        return allowed

    def persistent_load(self, pid: Any, /) -> Storage:
        if not isinstance(pid, tuple) or len(cast("tuple[object, ...]", pid)) < 5:
            raise pickle.UnpicklingError("a storage without its five parts")
        tag, dtype, key, _, numel, *view = cast("tuple[Any, ...]", pid)
        if tag != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("a storage that is none")
        if any(part is not None for part in view) or naturals((numel,)) is None:
            raise pickle.UnpicklingError(f"a storage of {numel!r:.40} elements, or a view of one")
        storage = Storage(key, dtype, numel)
        if self._storages is not None:
            self._storages[key] = storage
        return storage


def _rebuilt(storage: object, offset: object, shape: object, strides: object) -> PickledTensor:
    place, size, steps = naturals((offset,)), naturals(shape), naturals(strides)
    if not isinstance(storage, Storage) or place is None or size is None or steps is None:
        raise pickle.UnpicklingError("a tensor with impossible parts")
    if len(size) != len(steps):
        raise pickle.UnpicklingError(f"a tensor of shape {size} with strides {steps}")
    info = TensorInfo(shape=size, dtype=storage.dtype)
    return PickledTensor(storage, place[0], info, steps)


def _tensor_v2(
    storage: object, offset: object, shape: object, strides: object, *rest: object
) -> PickledTensor:
    """In place of torch._utils._rebuild_tensor_v2."""
    return _rebuilt(storage, offset, shape, strides)


def _tensor_v3(
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    *rest: object,
) -> PickledTensor:
    """In place of torch._utils._rebuild_tensor_v3: the storage is bytes, the dtype apart."""
    if not isinstance(storage, Storage) or not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError("a tensor with impossible parts")
    numel = storage.numel // dtype.itemsize
    return _rebuilt(Storage(storage.key, dtype, numel), offset, shape, strides)


def _parameter(tensor: object, *rest: object) -> object:
    """In place of torch._utils._rebuild_parameter."""
    return tensor


def _dictionary(*arguments: object) -> dict[object, object]:
    """In place of collections.defaultdict, whose argument could be anything callable."""
    return {}


_ALLOWED: Mapping[str, type | Callable[..., Any] | torch.dtype] = {
    "collections.OrderedDict": OrderedDict,
    "torch._utils._rebuild_tensor": _rebuilt,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": tuple,
    "torch.device": _Inert,
    "torch.serialization._get_layout": _Inert,
    "numpy.dtype": _Inert,
    "numpy.core.multiarray.scalar": _Inert,
    "numpy._core.multiarray.scalar": _Inert,
    "_codecs.encode": _Inert,
    "builtins.set": set,
    "collections.defaultdict": _dictionary,
    "argparse.Namespace": _Inert,
    **{f"torch.{name}": dtype for name, dtype in STORAGES.items()},
    "torch.storage.UntypedStorage": torch.uint8,
    **{str(dtype): dtype for dtype in _DTYPES},
}
