"""Which outputs are held at the same time, so that memory stays within its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from orderone.core.errors import ConfigError
from orderone.probes.tangent_pass import Block

Tile = tuple[Block, ...]
"""Blocks that are held together."""


_SIGNALS = 512
"""Rows of a matrix product from which more samples at once no longer make it faster."""
_SIGNALS_ACCELERATED = 2**16
"""The same where every call waits for its launch; seen on an H200, up to there it still gains."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes: of the result, of a sample's pass, and of each scalar output beside them."""

    kernels: int
    graph: int
    """What the pass of one sample keeps."""
    held: int
    """An output's gradients, in structured form."""
    backward: int
    """What its backward pass takes while it runs."""
    product: int
    """What its largest inner product takes while it is formed."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Outputs of all samples: ``samples`` × ``positions`` × ``indices``."""

    samples: int
    positions: int
    indices: int
    signals: int
    """Most places of one sample's signal to which a parameter is applied: T."""
    accelerated: bool = False
    """Whether the model is on another device than the CPU."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory, with the passes of so many samples in it."""

    cost: Cost
    memory: int
    together: int = 1

    @property
    def left(self) -> int:
        """Beside kernels and passes."""
        return self.memory - self.cost.kernels - self.together * self.cost.graph

    @property
    def backward(self) -> int:
        """Outputs that are taken back at once: a quarter of what is left."""
        return max(1, self.left // (4 * self.cost.backward))

    def fitting(self, *, tiles: int) -> int:
        """Outputs in a tile, with ``tiles`` of them held beside one running backward pass."""
        left = self.left - self.backward * self.cost.backward
        return max(0, left // (tiles * self.cost.held + self.cost.product))

    @property
    def needed(self) -> int:
        """The least memory that suffices."""
        cost = self.cost
        return cost.kernels + cost.graph + 2 * (cost.backward + 2 * cost.held + cost.product)


def samples_together(layout: Layout, cost: Cost, memory: int) -> int:
    """Samples to take at once: enough for large matrix products, where all outputs fit."""
    signals = layout.positions * layout.indices * layout.signals
    wanted = _SIGNALS_ACCELERATED if layout.accelerated else _SIGNALS
    most = min(layout.samples, -(-wanted // signals))
    for count in range(most, 1, -1):
        room = Room(cost=cost, memory=memory, together=count)
        rows = layout.samples * layout.positions
        if room.fitting(tiles=1) >= rows and room.backward >= count * layout.positions:
            return -(-layout.samples // -(-layout.samples // count))  # as even as can be
    return 1


def passes(layout: Layout, cost: Cost, memory: int, together: int) -> Iterator[list[Tile]]:
    """Tiles to be paired with one another; between passes only kernels stay, which add up.

    Inner products are within an output index, so indices are parted first; only when one index of
    all samples is too much are its outputs parted too, and gradients computed more than once.
    """
    room = Room(cost=cost, memory=memory, together=together)
    rows = layout.samples * layout.positions
    alone = room.fitting(tiles=1)
    if alone >= rows:
        # Of several samples all positions are taken back at once.
        at_once = room.backward // (together * layout.positions) if together > 1 else room.backward
        for indices in _slices(layout.indices, max(1, min(alone // rows, at_once))):
            yield [tuple(_blocks(layout, indices, room))]
        return
    fitting = room.fitting(tiles=2)
    if fitting < 1:
        raise ConfigError(
            f"memory of {memory / 2**20:.2f} MiB",
            expected=f"at least {room.needed / 2**20:.2f} MiB for this model and these inputs",
            do="allow more, or measure fewer inputs or outputs",
        )
    for index in range(layout.indices):
        blocks = _blocks(layout, slice(index, index + 1), room, most=fitting)
        yield list(_packed(blocks, fitting))


def _blocks(layout: Layout, indices: slice, room: Room, most: int | None = None) -> Iterator[Block]:
    width = indices.stop - indices.start
    step = max(1, min(room.backward, most or room.backward) // width)
    step = step if room.together == 1 else layout.positions
    for samples in _slices(layout.samples, room.together):
        for positions in _slices(layout.positions, step):
            yield Block(samples=samples, positions=positions, indices=indices)


def _packed(blocks: Iterator[Block], rows: int) -> Iterator[Tile]:
    """As many blocks in a row as fit."""
    tile: list[Block] = []
    for block in blocks:
        if tile and sum(each.rows for each in tile) + block.rows > rows:
            yield tuple(tile)
            tile = []
        tile.append(block)
    yield tuple(tile)


def _slices(total: int, step: int) -> Iterator[slice]:
    """Even parts of at most ``step``."""
    parts = -(-total // min(step, total))
    bounds = [round(k * total / parts) for k in range(parts + 1)]
    return (slice(a, b) for a, b in pairwise(bounds))
