"""One pass over a series: a chunk of parameters from every checkpoint, then the next chunk.

Only sums stay in memory, whatever the size of the model: one array a group (all pairs K × K,
neighbours K × 3). The pass can be stopped at any moment and taken up again: sums, and the place
reached, are written aside now and then, and the end is the same to the last bit.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from orderone.core.errors import RunError
from orderone.core.files import write_atomically
from orderone.trajectory.checkpoint import Checkpoint, TensorInfo
from orderone.trajectory.findings import Finding, UnreadableError
from orderone.trajectory.gram import add_neighbours, add_pairs, tilts_of
from orderone.trajectory.rounding import (
    DIGITS,
    EXPONENTS,
    LEAST,
    Grid,
    exponent_counts,
    is_coarse,
    without_rounding,
)
from orderone.trajectory.values import non_finite

Float = npt.NDArray[np.float64]
Pairing = Literal["all", "consecutive"]
Progress = Callable[[int, int], None]

_LARGEST_CHUNK = 1 << 21  # elements: more would not make reading faster
_SMALLEST_CHUNK = 1 << 14
_SAMPLED_TENSORS = 64
_SAMPLED = 4096
_SAMPLED_AT_ONCE = 16  # checkpoints
_SECONDS_BETWEEN_SAVES = 20.0
_VAST = 1e140  # weights above it leave float64 when a few billion of their squares are added


@dataclass(frozen=True)
class Piece:
    """One step of the pass: elements start..stop of a tensor."""

    name: str
    start: int
    stop: int
    ends: bool


@dataclass
class Sums:
    """What the pass has added up so far."""

    groups: dict[str, Float]
    unrounded: dict[str, Float]
    """‖δ_i‖² by group without what low precision added; as stored where nothing is rounded."""
    tensor: Float
    counts: Float
    tilts: Float
    coarse: list[bool]
    done: int = 0
    bad: dict[int, Finding] = field(default_factory=dict[int, Finding])


def pieces(infos: Mapping[str, TensorInfo], chunk: int) -> list[Piece]:
    """The pass in order."""
    return [
        Piece(name, start, min(start + chunk, info.numel), start + chunk >= info.numel)
        for name, info in infos.items()
        for start in range(0, info.numel, chunk)
    ]


def chunk_elements(memory: int, checkpoints: int) -> int:
    """Elements of a chunk: copies of one from every checkpoint take at most half of ``memory``."""
    fitting = memory // 2 // (8 * max(1, checkpoints))
    return max(_SMALLEST_CHUNK, min(_LARGEST_CHUNK, fitting))


class Pass:
    """The pass over one series; ``run`` goes to its end, from where a killed one had come."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        groups: Mapping[str, Sequence[str]],
        *,
        pairing: Pairing,
        memory: int,
        state: Path | None = None,
    ) -> None:
        self.checkpoints = checkpoints
        self.pairing: Pairing = pairing
        self.infos = dict(checkpoints[0].tensors())
        self.member: dict[str, list[str]] = {name: [] for name in self.infos}
        for group, names in groups.items():
            for name in names:
                self.member[name].append(group)
        self.names = list(groups)
        self.pieces = pieces(self.infos, chunk_elements(memory, len(checkpoints)))
        self.state = state
        self._saved = time.monotonic()
        self._broken = False  # the way to a checkpoint, which may be good again: nothing to keep

    def run(self, progress: Progress | None = None) -> Sums:
        sums = self._resumed() or self._fresh()
        sizes = self._sizes()
        total = sum(sizes)
        read = sum(sizes[: sums.done])
        for piece, size in zip(self.pieces[sums.done :], sizes[sums.done :], strict=True):
            self._add(piece, sums)
            sums.done += 1
            read += size
            if progress is not None:
                progress(read, total)
            self._save_sometimes(sums)
        return sums

    def _sizes(self) -> list[int]:
        width = {
            name: sum(each.tensors()[name].dtype.itemsize for each in self.checkpoints)
            for name in self.infos
        }
        return [(piece.stop - piece.start) * width[piece.name] for piece in self.pieces]

    # One piece -----------------------------------------------------------------------------------

    def _add(self, piece: Piece, sums: Sums) -> None:
        for i, checkpoint in enumerate(self.checkpoints):
            if i not in sums.bad:  # all at once, where they come from far away
                checkpoint.expect(piece.name, piece.start, piece.stop)
        chunks = [self._read(i, piece, sums) for i in range(len(self.checkpoints))]
        part = self._sum(chunks, sums)
        if not np.isfinite(part).all():
            # Only then are the elements themselves looked at: a sum is finite if they all are.
            chunks = [self._finite(i, piece, chunk, sums) for i, chunk in enumerate(chunks)]
            part = self._sum(chunks, sums)
        sums.tensor += part
        for i, chunk in enumerate(chunks):
            if chunk.dtype in DIGITS or sums.coarse[i]:
                sums.counts[i] += exponent_counts(chunk)
        if piece.ends:
            self._close_tensor(piece, chunks, sums)
        for checkpoint in self.checkpoints:
            checkpoint.release(piece.name, piece.start, piece.stop)

    def _sum(self, chunks: Sequence[Tensor], sums: Sums) -> Float:
        part = np.zeros_like(sums.tensor)
        if self.pairing == "all":
            add_pairs(part, chunks)
        else:
            add_neighbours(part, chunks, sums.tilts)
        return part

    def _read(self, i: int, piece: Piece, sums: Sums) -> Tensor:
        """The chunk of checkpoint i; zeros from the first chunk on that is no good."""
        if i not in sums.bad:
            checkpoint = self.checkpoints[i]
            try:
                return checkpoint.read(piece.name, piece.start, piece.stop)
            except UnreadableError as error:
                sums.bad[i] = error.finding(checkpoint.name)
                self._broken |= error.passing
        return torch.zeros(piece.stop - piece.start)

    def _finite(self, i: int, piece: Piece, chunk: Tensor, sums: Sums) -> Tensor:
        """The chunk, or zeros and a finding if something in it is NaN, infinite or as good as."""
        wrong = non_finite(chunk, piece.start)
        name = self.checkpoints[i].name
        if wrong is not None:
            shape = self.infos[piece.name].shape
            sums.bad[i] = wrong.finding(name, piece.name, shape)
        elif (most := float(chunk.double().abs().max())) > _VAST:
            detail = f"weights up to {most:.3g} in '{piece.name}', whose squares are no numbers"
            sums.bad[i] = Finding(checkpoint=name, kind="off-path", detail=detail)
        else:
            return chunk
        return torch.zeros(piece.stop - piece.start)

    def _close_tensor(self, piece: Piece, chunks: Sequence[Tensor], sums: Sums) -> None:
        """The tensor's sums go to its groups."""
        grids = [
            Grid(
                digits=DIGITS.get(c.dtype, 7 if coarse else None),
                counts=counts,
                least=LEAST.get(c.dtype, 0.0),
            )
            for c, coarse, counts in zip(chunks, sums.coarse, sums.counts, strict=True)
        ]
        steps = self._squared_steps(sums)
        unrounded = [
            without_rounding(float(step), before, after)
            for step, before, after in zip(steps, grids[:-1], grids[1:], strict=True)
        ]
        for group in self.member[piece.name]:
            sums.groups[group] += sums.tensor
            sums.unrounded[group] += unrounded
        sums.tensor[:] = 0.0
        sums.counts[:] = 0.0

    def _squared_steps(self, sums: Sums) -> Float:
        if self.pairing == "all":
            return np.diagonal(sums.tensor)[1:]
        t = sums.tilts[:-1].astype(np.float32).astype(np.float64)
        square, rest, product = sums.tensor[:-1].T
        return rest + 2 * t * product + t**2 * square

    # Beginning, and beginning again --------------------------------------------------------------

    def _fresh(self) -> Sums:
        count = len(self.checkpoints)
        shape = (count, count) if self.pairing == "all" else (count, 3)
        tilts, coarse = self._samples()
        return Sums(
            groups={group: np.zeros(shape) for group in self.names},
            unrounded={group: np.zeros(count - 1) for group in self.names},
            tensor=np.zeros(shape),
            counts=np.zeros((count, len(EXPONENTS))),
            tilts=tilts,
            coarse=coarse,
        )

    def _samples(self) -> tuple[Float, list[bool]]:
        """Tilts, and whether float32 holds rounded weights, from the beginnings of some tensors."""
        names = [name for name, info in self.infos.items() if info.numel]
        some = names[:: max(1, -(-len(names) // _SAMPLED_TENSORS))]
        lengths = {name: min(_SAMPLED, self.infos[name].numel) for name in some}
        rows: list[Float] = []
        coarse: list[bool] = []
        for first in range(0, len(self.checkpoints), _SAMPLED_AT_ONCE):
            for heads in _heads(self.checkpoints[first : first + _SAMPLED_AT_ONCE], lengths):
                rows.append(torch.cat([head.double() for head in heads]).numpy())
                coarse.append(is_coarse(heads))
        tilts = np.zeros(len(rows)) if self.pairing == "all" else tilts_of(np.stack(rows))
        return np.where(np.isfinite(tilts), tilts, 0.0), coarse

    @property
    def _fingerprint(self) -> str:
        described = [
            [
                each.name,
                each.step,
                each.stamp,
                sorted((n, str(i)) for n, i in each.tensors().items()),
            ]
            for each in self.checkpoints
        ]
        text = json.dumps([described, self.pairing, len(self.pieces), self.member])
        return hashlib.sha256(text.encode()).hexdigest()

    def _save_sometimes(self, sums: Sums) -> None:
        if self.state is None or self._broken:
            return
        finished = sums.done == len(self.pieces)
        if finished or time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
            save(self.state, self._fingerprint, sums)
            self._saved = time.monotonic()

    def _resumed(self) -> Sums | None:
        if self.state is None or not self.state.exists():
            return None
        return load(self.state, self._fingerprint)


def _heads(checkpoints: Sequence[Checkpoint], lengths: Mapping[str, int]) -> list[list[Tensor]]:
    """The first elements of tensors, of each checkpoint; zeros where they cannot be read."""
    found: list[list[Tensor]] = [[] for _ in checkpoints]
    for name, length in lengths.items():
        good = [i for i, heads in enumerate(found) if len(heads) < len(lengths)]
        for i in good:  # all at once, where they come from far away
            checkpoints[i].expect(name, 0, length)
        for i in good:
            try:
                found[i].append(checkpoints[i].read(name, 0, length).clone())
            except UnreadableError:  # found again, and told, when its turn comes
                found[i] = [torch.zeros(n) for n in lengths.values()]
    return found


# The state on disk: plain arrays, read without pickle --------------------------------------------


def save(path: Path, fingerprint: str, sums: Sums) -> None:
    """Write the pass as it stands, in place of what stood there."""
    described = {
        "fingerprint": fingerprint,
        "done": sums.done,
        "coarse": sums.coarse,
        "groups": list(sums.groups),
        "bad": {str(i): [f.checkpoint, f.kind, f.detail] for i, f in sums.bad.items()},
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        described=np.frombuffer(json.dumps(described).encode(), dtype=np.uint8),
        groups=np.stack(list(sums.groups.values())),
        unrounded=np.stack(list(sums.unrounded.values())),
        tensor=sums.tensor,
        counts=sums.counts,
        tilts=sums.tilts,
    )
    write_atomically(path, buffer.getvalue())


def load(path: Path, fingerprint: str) -> Sums | None:
    """The pass that ``save`` wrote; None when it is of another series or other settings."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        described = cast("dict[str, Any]", json.loads(bytes(arrays["described"])))
        if described["fingerprint"] != fingerprint:
            return None
        names = cast("list[str]", described["groups"])
        return Sums(
            groups=dict(zip(names, arrays["groups"], strict=True)),
            unrounded=dict(zip(names, arrays["unrounded"], strict=True)),
            tensor=arrays["tensor"],
            counts=arrays["counts"],
            tilts=arrays["tilts"],
            coarse=described["coarse"],
            done=described["done"],
            bad={
                int(i): Finding(checkpoint=f[0], kind=f[1], detail=f[2])
                for i, f in described["bad"].items()
            },
        )
    except Exception as error:  # a damaged archive can make its reader raise nearly anything
        raise RunError(
            f"'{path}' is not the state of a pass ({error})",
            expected="what an earlier run of this command left there",
            do="remove it to begin anew",
        ) from error


def walk(checkpoints: Sequence[Checkpoint], chunk: int) -> Iterator[tuple[str, list[Tensor]]]:
    """Chunk by chunk, the same elements of each checkpoint."""
    for piece in pieces(checkpoints[0].tensors(), chunk):
        yield piece.name, [c.read(piece.name, piece.start, piece.stop) for c in checkpoints]
