"""Inner products of checkpoints over one chunk of parameters, added in float64.

A series θ_0 … θ_{K−1} is held as its first point and its steps δ_i = θ_{i+1} − θ_i. Differences are
formed element by element, before anything is added, so that close checkpoints lose no digits.

All pairs: the Gram matrix of (θ_0, δ_0, …, δ_{K−2}) in float64. Every ⟨θ_i, θ_j⟩ and every distance
is a sum of its entries (``geometry``).

Neighbours only: for each i three sums, from two streams. With r_i = δ_i − t_i θ_i (t_i = 0 unless
step and parameters are all but parallel) they are ‖θ_i‖², ‖r_i‖² and θ_i·r_i; ‖θ_{i+1}‖² follows
from θ_{i+1} = (1 + t_i) θ_i + r_i without another look at the data.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float = npt.NDArray[np.float64]

SQUARE, REST, PRODUCT = 0, 1, 2  # columns of the sums of neighbours: ‖θ‖², ‖r‖², θ·r

# A block of both streams and of their difference stays in the L2 cache. Below 10,000 elements
# OpenBLAS adds on one thread; so few float32 products at a time keep its error near 1e-9.
_BLOCK = 9984
_WIDE_BLOCK = 1 << 15  # float64 blocks, whose length does not matter to accuracy
_PAIRS_BYTES = 1 << 21  # of the K rows in float64 that one matrix product reads
_TINY = 1e-30  # a mean square below which float32 squares may have lost elements of 1e-19
_ALIKE = 1e-3  # relative spread of sizes below which float32 rounding errors are one-sided
_PROBES = 64


def add_pairs(gram: Float, chunks: Sequence[Tensor]) -> None:
    """Add the Gram matrix of (θ_0, δ_0, …) over one chunk: a flat tensor each checkpoint."""
    count, elements = len(chunks), chunks[0].numel()
    width = max(256, min(_PAIRS_BYTES // (8 * count), elements))
    total, half = torch.from_numpy(gram), count // 2
    rows = torch.empty(count, width, dtype=torch.float64)
    for start in range(0, elements, width):
        stop = min(start + width, elements)
        steps = rows[:, : stop - start]
        each = steps.unbind()
        for row, chunk in zip(each, chunks, strict=True):
            row.copy_(chunk[start:stop])
        # In place and from the end, where θ_{i−1} still stands: θ_i becomes δ_{i−1}.
        for i in range(count - 1, 0, -1):
            each[i].sub_(each[i - 1])
        # Three quarters of the products: the last one is the mirror of another.
        total[:half, :half].addmm_(steps[:half], steps[:half].T)
        total[:, half:].addmm_(steps, steps[half:].T)
    total[half:, :half] = total[:half, half:].T


def tilts_of(samples: Float) -> Float:
    """t_i for ``add_neighbours`` from a sample of each checkpoint's elements, (K, n); last one 0.

    Where a step runs along θ, ‖δ‖² sin² is lost in ‖δ‖² − (θ·δ)²/‖θ‖²; with a short r in δ's
    place it is not. Elsewhere r = δ, which float32 holds. Steps that nearly undo θ are left alone.
    """
    tilts = np.zeros(len(samples))
    theta, step = samples[:-1], np.diff(samples, axis=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        square, product = (theta**2).sum(1), (theta * step).sum(1)
        alignment = product / np.sqrt(square * (step**2).sum(1))
        t = product / square
    parallel = (np.abs(alignment) > 0.9) & (t > -0.5) & (t < 1)
    tilts[:-1] = np.where(parallel, t, 0.0)
    return tilts


@np.errstate(over="ignore", invalid="ignore")  # such chunks are found, and added in float64
def add_neighbours(sums: Float, chunks: Sequence[Tensor], tilts: Float) -> None:
    """Add ‖θ_i‖², ‖r_i‖² and θ_i·r_i over one chunk to ``sums`` (K, 3), r_i = δ_i − tilts_i θ_i."""
    if all(chunk.dtype == torch.float32 for chunk in chunks):
        part = _single(chunks, tilts)
        doubtful = _doubtful(part, chunks)
        if doubtful.any():
            part = np.where(doubtful[:, None], _double(chunks, tilts), part)
    else:
        part = _double(chunks, tilts)
    sums += part


def _single(chunks: Sequence[Tensor], tilts: Float) -> Float:
    """The sums with blocks in float32 and everything above them in float64."""
    arrays = [chunk.numpy() for chunk in chunks]
    last = len(arrays) - 1
    rest, product = np.zeros(last + 1), np.zeros(last + 1)
    first = 0.0
    step = np.empty(_BLOCK, dtype=np.float32)
    along = np.empty(_BLOCK, dtype=np.float32)
    for start in range(0, len(arrays[0]), _BLOCK):
        theta = arrays[0][start : start + _BLOCK]
        r, s = step[: len(theta)], along[: len(theta)]
        first += float(np.dot(theta, theta))
        for i in range(last):
            following = arrays[i + 1][start : start + _BLOCK]
            np.subtract(following, theta, out=r)
            if tilts[i]:
                np.multiply(theta, np.float32(tilts[i]), out=s)
                np.subtract(r, s, out=r)
            rest[i] += float(np.dot(r, r))
            product[i] += float(np.dot(r, theta))
            theta = following
    return np.stack([_squares(first, rest, product, tilts, arrays), rest, product], axis=1)


def _squares(
    first: float,
    rest: Float,
    product: Float,
    tilts: Float,
    arrays: Sequence[npt.NDArray[np.float32]],
) -> Float:
    """‖θ_i‖² along the series by ‖(1 + t)θ + r‖²; anew where rounding has added up."""
    squares = np.empty(len(arrays))
    squares[0] = first
    walked = 0.0
    for i in range(len(arrays) - 1):
        grown = 1 + np.float64(np.float32(tilts[i]))
        squares[i + 1] = grown**2 * squares[i] + 2 * grown * product[i] + rest[i]
        walked += rest[i]
        if not walked < squares[i + 1] or not grown**2 * squares[i] < 4 * squares[i + 1]:
            squares[i + 1] = _square(arrays[i + 1])
            walked = 0.0
    return squares


def _square(array: npt.NDArray[np.float32]) -> float:
    blocks = (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))
    return sum(float(np.dot(block, block)) for block in blocks)


def _doubtful(part: Float, chunks: Sequence[Tensor]) -> npt.NDArray[np.bool_]:
    """Which rows float32 cannot be trusted with: overflow, underflow, elements all alike."""
    elements = max(1, chunks[0].numel())
    sizes = part[:, [SQUARE, REST]] / elements
    doubt = ~np.isfinite(part).all(axis=1) | (sizes[:, 0] < _TINY)
    doubt[:-1] |= sizes[:-1, 1] < _TINY
    probes = torch.stack([chunk[:: max(1, elements // _PROBES)] for chunk in chunks]).numpy()
    alike = _alike(probes)
    alike[:-1] |= _alike(np.diff(probes, axis=0))
    return doubt | alike


def _alike(probes: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    sizes = np.abs(probes)
    return sizes.max(axis=1) - sizes.min(axis=1) <= _ALIKE * sizes.max(axis=1)


def _double(chunks: Sequence[Tensor], tilts: Float) -> Float:
    """The sums in float64 throughout."""
    sums = np.zeros((len(chunks), 3))
    tilts = tilts.astype(np.float32).astype(np.float64)
    for start in range(0, chunks[0].numel(), _WIDE_BLOCK):
        theta = chunks[0][start : start + _WIDE_BLOCK].double()
        for i in range(len(chunks)):
            sums[i, SQUARE] += float(theta.dot(theta))
            if i + 1 == len(chunks):
                break
            following = chunks[i + 1][start : start + _WIDE_BLOCK].double()
            r = following - theta
            if tilts[i]:
                r -= float(tilts[i]) * theta
            sums[i, REST] += float(r.dot(r))
            sums[i, PRODUCT] += float(r.dot(theta))
            theta = following
    return sums
