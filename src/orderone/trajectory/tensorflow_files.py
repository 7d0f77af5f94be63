"""TensorFlow's checkpoints (T5's among them), where TensorFlow is installed to read them."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from orderone.core.errors import MissingPackageError
from orderone.trajectory.byte_files import Files
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.mapped import OpenMaps
from orderone.trajectory.safetensors_files import naturals
from orderone.trajectory.stored import Stored, Weights

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Adam's and Adafactor's slots, and counters, lie beside the weights under their names.
_SLOTS = ("Adam", "Adam_1", "slot_v", "slot_vc", "slot_vr", "slot_m", "Momentum", ".OPTIMIZER_SLOT")


def tensorflow(path: Path, files: Files) -> Weights:
    """The variables of the checkpoint whose index is ``path`` (NAME.index)."""
    if not isinstance(files, OpenMaps):
        what = "TensorFlow reads checkpoints from disk only: keep the downloads"
        raise UnreadableError("unreadable", f"'{path.name}': {what}")
    try:
        import tensorflow as tf  # pyright: ignore[reportMissingImports]  # optional, large
    except ImportError as error:
        raise MissingPackageError("tensorflow", needed_for=f"checkpoint '{path.name}'") from error
    try:
        reader: Any = tf.train.load_checkpoint(str(path.with_suffix("")))
        shapes: dict[str, Any] = reader.get_variable_to_shape_map()
        dtypes: dict[str, Any] = reader.get_variable_to_dtype_map()
    except Exception as error:  # TensorFlow's errors share no base class with Python's
        reason = f"{type(error).__name__}: {error}"
        raise UnreadableError("unreadable", f"'{path.name}' ({reason:.200})") from error
    tensors: dict[str, Stored] = {}
    for name in sorted(shapes):
        dtype, shape = _DTYPES.get(dtypes[name].name), naturals(shapes[name])
        if dtype is None or shape is None or any(part in _SLOTS for part in name.split("/")):
            continue
        clean = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace("/", ".")
        tensors[clean] = Variable(TensorInfo(shape=shape, dtype=dtype), reader, name)
    return Weights(tensors=tensors)


class Variable:
    """One variable, which the reader gives whole; kept while it is being read in chunks."""

    def __init__(self, info: TensorInfo, reader: Any, name: str) -> None:
        self.info = info
        self._reader, self._name = reader, name
        self._whole: Tensor | None = None

    @property
    def place(self) -> object:
        return (id(self._reader), self._name)

    def read(self, start: int, stop: int) -> Shaped[Tensor, " n"]:
        if self._whole is None:
            self._whole = self._read()
        piece = self._whole[start:stop]
        if stop == self.info.numel:
            self._whole = None  # chunks go forwards: this was the last
        return piece

    def _read(self) -> Tensor:
        try:
            array: Any = self._reader.get_tensor(self._name)
            if self.info.dtype == torch.bfloat16:  # NumPy has none: the same bits as integers
                return torch.from_numpy(array.view("uint16")).view(torch.bfloat16).reshape(-1)
            whole = torch.from_numpy(array).reshape(-1)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableError("unreadable", f"'{self._name}' ({reason:.200})") from error
        return whole

    def expect(self, start: int, stop: int) -> None:
        """Nothing: TensorFlow reads ahead by itself."""

    def release(self, start: int, stop: int) -> None:
        """Nothing: the whole variable is dropped after its last chunk."""

    def close(self) -> None:
        self._whole = None
