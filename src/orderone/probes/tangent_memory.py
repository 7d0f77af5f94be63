"""Which outputs are held at the same time, so that memory stays within its bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from orderone.core.errors import ConfigError
from orderone.probes.tangent_sample import Block

_UNITS = {"": 1, "B": 1, "K": 1e3, "M": 1e6, "G": 1e9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_SIZE = re.compile(r"([0-9.]+)\s*([KMG]?I?)B?")

Tile = tuple[Block, ...]
"""Blocks that are held together."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes: of a pass and the result, and of each scalar output beside them."""

    fixed: int
    """One sample's graph, and the kernels."""
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


def parse_memory(memory: str | int) -> int:
    """Bytes of "512MiB", "2 GB" or a number."""
    text = str(memory).strip().upper()
    match = _SIZE.fullmatch(text)
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except ValueError:
        size = 0
    if size <= 0:
        raise ConfigError(
            f"memory = {memory!r}", expected="a size", do="give bytes, or text such as '512MiB'"
        )
    return size


def passes(layout: Layout, cost: Cost, memory: int) -> Iterator[list[Tile]]:
    """Tiles to be paired with one another; between passes only kernels stay, which add up.

    Inner products are within an output index, so indices are parted first; only when one index of
    all samples is too much are its outputs parted too, and gradients computed more than once.
    """
    rows = layout.samples * layout.positions
    alone = _rows_that_fit(cost, memory, tiles=1)
    if alone >= rows:
        for indices in _slices(layout.indices, min(alone // rows, _backward_rows(cost, memory))):
            yield [tuple(_blocks(layout, indices, cost, memory))]
        return
    fitting = _rows_that_fit(cost, memory, tiles=2)
    if fitting < 1:
        raise ConfigError(
            f"memory of {memory / 2**20:.2f} MiB",
            expected=f"at least {_needed(cost) / 2**20:.2f} MiB for this model and these inputs",
            do="allow more, or measure fewer inputs or outputs",
        )
    for index in range(layout.indices):
        blocks = _blocks(layout, slice(index, index + 1), cost, memory, most=fitting)
        yield list(_packed(blocks, fitting))


def _rows_that_fit(cost: Cost, memory: int, *, tiles: int) -> int:
    """Outputs in a tile, with ``tiles`` of them held beside one running backward pass."""
    left = memory - cost.fixed - _backward_rows(cost, memory) * cost.backward
    return max(0, left // (tiles * cost.held + cost.product))


def _backward_rows(cost: Cost, memory: int) -> int:
    """Outputs that are taken back at once: a quarter of the memory."""
    return max(1, (memory - cost.fixed) // (4 * cost.backward))


def _needed(cost: Cost) -> int:
    return cost.fixed + 2 * (cost.backward + 2 * cost.held + cost.product)


def _blocks(
    layout: Layout, indices: slice, cost: Cost, memory: int, most: int | None = None
) -> Iterator[Block]:
    at_once = _backward_rows(cost, memory)
    width = indices.stop - indices.start
    step = max(1, min(at_once, most or at_once) // width)
    for sample in range(layout.samples):
        for positions in _slices(layout.positions, step):
            yield Block(sample=sample, positions=positions, indices=indices)


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
