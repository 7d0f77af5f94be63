"""DCP's safetensors form: a file a rank, each with its part of every tensor."""

from collections.abc import Sequence
from math import prod
from pathlib import Path

from orderone.trajectory.byte_files import Files
from orderone.trajectory.checkpoint import TensorInfo
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.safetensors_files import safetensors
from orderone.trajectory.stored import Piece, Pieced, Stored, Weights


def ranked(paths: Sequence[Path], files: Files) -> Weights:
    """Tensors put together from every rank's file; their shapes are what the parts make up."""
    parts: dict[str, dict[tuple[int, ...], Piece]] = {}
    for path in paths:
        weights = safetensors(path, files)
        for name, stored in weights.tensors.items():
            offsets = weights.offsets.get(name, (0,) * len(stored.info.shape))
            if len(offsets) != len(stored.info.shape):
                raise UnreadableError("shape", f"'{path.name}' misplaces its part of '{name}'")
            # What is not sharded may stand in several files; one copy is enough.
            parts.setdefault(name, {})[offsets] = Piece(offsets=offsets, stored=stored)
    return Weights(tensors={name: _whole(name, [*each.values()]) for name, each in parts.items()})


def _whole(name: str, pieces: list[Piece]) -> Stored:
    ranks = {len(piece.shape) for piece in pieces}
    dtypes = {piece.stored.info.dtype for piece in pieces}
    if len(ranks) != 1 or len(dtypes) != 1:
        raise UnreadableError("shape", f"the parts of '{name}' differ in dimensions or dtype")
    ends = [
        tuple(o + s for o, s in zip(piece.offsets, piece.shape, strict=True)) for piece in pieces
    ]
    shape = tuple(max(column) for column in zip(*ends, strict=True))
    if sum(piece.stored.info.numel for piece in pieces) != prod(shape):
        raise UnreadableError("missing-shard", f"the parts of '{name}' do not make it up")
    return Pieced(info=TensorInfo(shape=shape, dtype=dtypes.pop()), pieces=tuple(pieces))
