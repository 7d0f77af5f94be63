"""The neural tangent kernel of a model as it is, by group of parameters.

[DYZ23] eq. (1.96): Ĥ_12 = Σ_μ λ_G(μ) ∂f_1/∂θ_μ ∂f_2/∂θ_μ, measured exactly: no sampling, and for
the maps of a network no gradient is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from orderone.core.errors import ConfigError
from orderone.core.parameter_names import clean_name
from orderone.core.sizes import memory_bytes
from orderone.probes.coordinates import evaluating, rms
from orderone.probes.samples import (
    Inputs,
    Output,
    call,
    chosen_output,
    sample_count,
    tensors_of,
    with_tensors,
)
from orderone.probes.tangent_groups import (
    Groups,
    Planned,
    grouping,
    trained_parameters,
)
from orderone.probes.tangent_memory import (
    Cost,
    Layout,
    Tile,
    passes,
    samples_together,
)
from orderone.probes.tangent_pass import Block, Parts, Pass, length
from orderone.probes.tangent_terms import product
from orderone.probes.tangent_together import ApartError

_FEW = 8
"""Samples of the first pass."""


@dataclass(frozen=True, kw_only=True)
class Tangent:
    """A measured NTK. Rows are outputs, sample-major, of the axes ``shape``."""

    groups: Mapping[str, Float64[Tensor, "a a"]] = field(repr=False)
    """Each group's share, with its factor and, for AdamW, 1/|g|."""
    shape: tuple[int, ...]
    """(samples, positions…) of "mean", (samples, positions…, outputs) of "full"."""
    gradient_size: Mapping[str, float]
    """|g| of each group: r.m.s. of one component of the gradient."""

    @property
    def total(self) -> Float64[Tensor, "a a"]:
        """Ĥ: the sum of all groups."""
        return torch.stack(list(self.groups.values())).sum(0)

    def __str__(self) -> str:
        """A line for each group: the mean of its diagonal, and |g|."""
        axes = "×".join(map(str, self.shape))
        rows = [
            f"  {group:<16} {float(K.diagonal().mean()):>12.4g} {self.gradient_size[group]:>12.4g}"
            for group, K in self.groups.items()
        ]
        total = f"  {'total':<16} {float(self.total.diagonal().mean()):>12.4g}"
        head = f"  {'group':<16} {'mean diagonal':>12} {'|g|':>12}"
        return "\n".join([f"Measured NTK of {axes} outputs", head, *rows, total])


def tangent(
    model: nn.Module,
    inputs: Inputs,
    *,
    groups: Planned | Groups | None = None,
    optimizer: str = "sgd",
    outputs: str = "mean",
    output: Output | None = None,
    gradient: Mapping[str, Tensor] | None = None,
    epsilon: float | None = None,
    memory: str | int = "512MiB",
) -> Tangent:
    """Ĥ of [DYZ23] eq. (1.96) over a batch of inputs, for each group of parameters.

    ``groups`` is a plan, or (group, λ) by parameter name; without, groups are roles and λ = 1.
    The last axis of the model's output are the output indices i: "full" keeps Ĥ_{i1 i2}, "mean" is
    its trace over them divided by their number, which estimates Θ. ``output`` picks the tensor, or
    a part of it, from what the model returns.

    AdamW's kernel has λ̃/|g| for λ. |g| is each group's r.m.s.: of ``gradient`` (by parameter name)
    where that is given, else of ∂f_i/∂θ over all outputs; the two differ by one constant at the
    start of training. An ``epsilon`` divides by each parameter's own |g_μ| + ε instead. Without an
    ε that has no mean: 1/|g| of a Gaussian g diverges.

    Dropout is off. ``memory`` bounds what is held beside the model. Several samples are run at once
    under ``torch.vmap`` where the model can be, which changes nothing but the time.
    """
    _check(outputs, optimizer, gradient, epsilon)
    model = getattr(model, "_orig_mod", model)  # a compiled model shows none of its functions
    chosen = grouping(model, groups, optimizer)
    count = sample_count(inputs)
    measurement = _Measurement(
        parameters={n: p for n, p in trained_parameters(model).items() if n in chosen},
        groups=chosen,
        run=lambda tensors: chosen_output(call(model, with_tensors(inputs, tensors)), output),
        tensors=tensors_of(inputs),
        weights=None if epsilon is None else _weights(gradient or {}, chosen, epsilon),
    )
    with evaluating(model):
        measurement.measure(count, outputs, memory_bytes(memory))
    sizes = measurement.sizes() if gradient is None else _sizes_of(gradient, chosen)
    kernels = measurement.kernels
    if optimizer == "adamw" and epsilon is None:
        # A group without a gradient has kernel 0, whatever it is divided by.
        kernels = {group: K / (sizes[group] or 1.0) for group, K in kernels.items()}
    return Tangent(groups=kernels, shape=measurement.shape, gradient_size=sizes)


def _check(
    outputs: str, optimizer: str, gradient: Mapping[str, Tensor] | None, epsilon: float | None
) -> None:
    if outputs not in ("mean", "full"):
        raise ConfigError(f"outputs = '{outputs}'", expected="mean or full", do="choose one")
    if epsilon is None:
        return
    if optimizer != "adamw" or gradient is None or not epsilon > 0:
        raise ConfigError(
            f"epsilon = {epsilon} with optimizer '{optimizer}', "
            + ("no gradient" if gradient is None else "a gradient"),
            expected="a positive epsilon, AdamW, and the gradient by parameter name",
            do="pass optimizer='adamw' and gradient=..., or leave epsilon out",
        )


def _of(gradient: Mapping[str, Tensor], groups: Groups) -> dict[str, Tensor]:
    """The given gradient of every measured parameter."""
    found = {clean_name(name): g.detach() for name, g in gradient.items()}
    missing = [name for name in groups if name not in found]
    if missing:
        raise ConfigError(
            f"a gradient without '{missing[0]}'",
            expected="every measured parameter by name",
            do="pass probes.coordinates.gradients(model) after a backward pass",
        )
    return {name: found[name] for name in groups}


def _weights(gradient: Mapping[str, Tensor], groups: Groups, epsilon: float) -> dict[str, Tensor]:
    """1/(|g_μ| + ε)."""
    return {name: 1 / (g.abs() + epsilon) for name, g in _of(gradient, groups).items()}


def _sizes_of(gradient: Mapping[str, Tensor], groups: Groups) -> dict[str, float]:
    """|g| of each group, of a given gradient."""
    members: dict[str, list[Tensor]] = {}
    for name, g in _of(gradient, groups).items():
        members.setdefault(groups[name][0], []).append(g.flatten())
    return {group: rms(torch.cat(parts)) for group, parts in members.items()}


@dataclass(kw_only=True)
class _Measurement:
    """Kernels as they add up."""

    parameters: dict[str, nn.Parameter]
    groups: Groups
    run: Callable[[Sequence[Tensor]], Tensor]
    tensors: Sequence[Tensor]
    """Inputs, whose first axis is samples."""
    weights: Mapping[str, Tensor] | None
    kernels: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    shape: tuple[int, ...] = ()
    _squares: dict[str, float] = field(default_factory=dict[str, float])
    _layout: Layout = field(init=False)
    _looked_up: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _first: Pass | None = None
    """The pass that told the shapes, until its samples are loaded."""
    _apart: bool = False
    """Whether the model turned out not to run on several samples at once."""

    def measure(self, samples: int, outputs: str, memory: int) -> None:
        """All pairs of outputs, samples together where that is quicker and the model allows it."""
        cost = self._prepare(samples, outputs, memory)
        together = 1 if self._apart else samples_together(self._layout, cost, memory)
        try:
            self._measure(cost, memory, together)
        except ApartError:  # all samples are run before anything is added
            self._measure(cost, memory, 1)
        for kernel in self.kernels.values():
            kernel.div_(self._layout.indices)

    def sizes(self) -> dict[str, float]:
        """|g|_G = √(mean over outputs of ‖∂f/∂θ_G‖² / number of parameters)."""
        counts: dict[str, int] = {}
        for name, (group, _) in self.groups.items():
            counts[group] = counts.get(group, 0) + self._count(name)
        rows = len(next(iter(self.kernels.values()))) * self._layout.indices
        return {
            group: math.sqrt(square / (rows * max(1, counts[group])))
            for group, square in self._squares.items()
        }

    def _measure(self, cost: Cost, memory: int, together: int) -> None:
        """All pairs of outputs, tile by tile."""
        for tiles in passes(self._layout, cost, memory, together):
            for place, tile in enumerate(tiles):
                held = self._load(tile)
                self._pair_all(held, held)
                for other in tiles[place + 1 :]:
                    self._pair_all(held, self._load(other))

    def _count(self, name: str) -> int:
        """Elements; of a lookup table, those of rows that occur, as no other has a gradient."""
        parameter = self.parameters[name]
        if name in self._looked_up:
            return len(self._looked_up[name]) * (parameter.numel() // len(parameter))
        return parameter.numel()

    def _prepare(self, samples: int, outputs: str, memory: int) -> Cost:
        """Shapes, empty kernels, and what an output costs, from the first samples."""
        first = self._first = self._begun(samples, memory)
        *positions, n_out = first.y.shape[2:]
        count = math.prod(positions)
        full = outputs == "full"
        self.shape = (samples, *positions, n_out) if full else (samples, *positions)
        self._layout = Layout(
            samples=samples,
            positions=count * n_out if full else count,
            indices=1 if full else n_out,
            signals=max((use.dims[0] for use in first.uses), default=1),
            accelerated=first.y.device.type != "cpu",
        )
        rows = samples * self._layout.positions
        names = list(dict.fromkeys(group for group, _ in self.groups.values()))
        place = first.y.device if first.y.device.type != "mps" else torch.device("cpu")
        self.kernels = {
            group: torch.zeros(rows, rows, dtype=torch.float64, device=place) for group in names
        }
        self._squares = dict.fromkeys(names, 0.0)
        return self._cost(first)

    def _begun(self, samples: int, memory: int) -> Pass:
        """The first pass: of a few samples, as they may be all of them, or else of one."""
        count = min(samples, _FEW)
        if count > 1:
            try:
                return self._pass(slice(0, count), most=memory // (4 * count))
            except ApartError:
                self._apart = True
        return self._pass(slice(0, 1))

    def _cost(self, first: Pass) -> Cost:
        """Of one sample and one output."""
        item = max(4, first.y.element_size())
        each = [n * item for n in first.numbers()]
        used = sum(use.dims[0] * use.dims[1] for use in first.uses) * item
        return Cost(
            kernels=sum(K.nbytes for K in self.kernels.values()),
            graph=2 * first.bytes,
            held=sum(each),
            # All δ, gradients that are formed, the cotangent, and what autograd has in hand.
            backward=used + sum(each) + 2 * first.y[0].nbytes + 6 * first.largest,
            product=3 * max(each, default=0),
        )

    def _pass(self, samples: slice, most: int | None = None) -> Pass:
        tensors = [x[samples] for x in self.tensors]
        return Pass(self.run, tensors, self.parameters, weights=self.weights, most=most)

    def _taken(self, samples: slice) -> Pass:
        """The samples' pass; the first is kept from the preparation, and no longer than needed."""
        if self._first is not None and samples == slice(0, self._first.samples):
            first, self._first = self._first, None
            return first
        self._first = None
        return self._pass(samples)

    def _load(self, tile: Tile) -> list[tuple[Block, Parts]]:
        """Gradients of a tile's blocks, one forward pass for those of the same samples."""
        held: list[tuple[Block, Parts]] = []
        current: tuple[slice, Pass] | None = None
        for block in tile:
            if current is None or current[0] != block.samples:
                current = None  # the graph before goes first
                current = (block.samples, self._taken(block.samples))
                for name, rows in current[1].looked_up().items():
                    self._looked_up.setdefault(name, set()).update(rows)
            of = (self._layout.positions, self._layout.indices)
            held.append((block, current[1].parts(block.positions, block.indices, of=of)))
        return held

    def _pair_all(self, ours: list[tuple[Block, Parts]], theirs: list[tuple[Block, Parts]]) -> None:
        for place, (one, parts) in enumerate(ours):
            for two, others in theirs[place:] if ours is theirs else theirs:
                self._add(one, two, parts, others)

    def _add(self, one: Block, two: Block, parts: Parts, others: Parts) -> None:
        """⟨∂f_1, ∂f_2⟩ of two blocks, at both places of the symmetric kernel."""
        rows, columns = self._rows(one), self._rows(two)
        for name in parts.keys() & others.keys():
            group, factor = self.groups[name]
            K = product(parts[name], others[name], self.parameters[name].shape)
            if one == two:
                self._squares[group] += K.diagonal().sum().item()
            self.kernels[group][rows, columns] += factor * K
            if one != two:
                self.kernels[group][columns, rows] += factor * K.mT

    def _rows(self, block: Block) -> slice:
        """The block's outputs, which are neighbours: several samples come with all positions."""
        start = block.samples.start * self._layout.positions + block.positions.start
        return slice(start, start + length(block.samples) * length(block.positions))
