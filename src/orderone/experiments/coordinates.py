"""Everything inside a network stays of order one at any width, at the start and while it learns.

Source   [DYZ23] §I.3, eqs. (1.25)–(1.34), (1.108)–(1.116)
Expect   see ``expectation``; nothing grows at s = 0, ½ or 1, and under standard it does
Cost     seconds to a minute on one core, at widths up to 512
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError
from orderone.experiments.expectation import (
    FAILING,
    Quantity,
    Verdict,
    expected_slope,
    gradient_group,
    verdict,
)
from orderone.experiments.slope import loglog_slope
from orderone.probes.coordinates import (
    Place,
    changes,
    evaluating,
    forward_signals,
    gradient_sizes,
    gradients,
    sizes,
)
from orderone.scaling.matching import required_module
from orderone.scaling.plan import Plan, plan
from orderone.scaling.tasks import task

if TYPE_CHECKING:
    from orderone.report.charts import Picture

Make = Callable[[int], nn.Module]
Loss = Callable[[nn.Module, Any], Tensor]

SCHEMA: dict[str, Any] = {
    "kind": pl.String,
    "where": pl.String,
    "quantity": pl.String,
    "step": pl.Int64,
    "width": pl.Int64,
    "seed": pl.Int64,
    "value": pl.Float64,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """How one size goes with the width: ∝ n^slope."""

    what: str
    kind: str
    where: str
    quantity: Quantity
    step: int
    slope: float | None
    """None of what is exactly zero."""
    low: float | None
    high: float | None
    expected: float | None
    """The theory's exponent, where it has one."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The result of a check of coordinates."""

    strategy: str
    widths: tuple[int, ...]
    frame: pl.DataFrame = field(repr=False)
    """Every measured r.m.s.: kind, where, quantity (size or change), step, width, seed, value."""
    lines: tuple[Line, ...]

    @property
    def growing(self) -> tuple[Line, ...]:
        """The lines for which the check does not hold, steepest first."""
        failing = [line for line in self.lines if line.verdict in FAILING]
        return tuple(sorted(failing, key=lambda line: -(line.slope or 0.0)))

    @property
    def verdict(self) -> str:
        """Whether the check holds: nothing grows."""
        return "does not hold" if self.growing else "holds"

    def chart(self) -> Picture:
        """R.m.s. against width at initialisation, and of the change after the last step."""
        from orderone.report.charts import facets
        from orderone.report.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION

        lines = pl.DataFrame(
            [
                {
                    "kind": line.kind,
                    "where": line.where,
                    "quantity": line.quantity,
                    "step": line.step,
                    "verdict": line.verdict,
                }
                for line in self.lines
            ]
        )
        verdicts = {line.verdict for line in self.lines}
        colours = {
            "order one": BLUE,
            "decays as expected": GREEN,
            "decays": ORANGE,
            "unclear": GREY,
            "grows": VERMILION,
            "not finite": PURPLE,
        }
        drawn = lines.join(self.frame, on=["kind", "where", "quantity", "step"])
        return facets(
            drawn.with_columns(facet=_facet()).sort("kind", pl.col("quantity") == "change"),
            x=("width", "width n"),
            y=("value", "r.m.s."),
            detail="where",
            facet="facet",
            colour=("verdict", "slope over widths"),
            colours={name: colour for name, colour in colours.items() if name in verdicts},
            title="Sizes by width",
            subtitle=f"{self.strategy}; of order one is flat",
        )

    def __str__(self) -> str:
        heading = f"{self.strategy}, widths {', '.join(map(str, self.widths))}: {self.verdict}"
        return "\n".join([heading, *map(described, self.lines)])


def coordinates(
    make: Make,
    widths: Sequence[int],
    strategy: str | None = None,
    steps: int = 3,
    seeds: int | Sequence[int] = 3,
    *,
    s: float | None = None,
    lr: float | None = None,
    batch: int = 4,
    inputs: Any = None,
    loss: Loss | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Coordinates:
    """Sizes and changes of everything inside ``make(width)`` over a few AdamW steps, by width.

    ``inputs`` is one batch for all widths, ``loss`` a function of a model and that batch; both are
    found from the model where not given. ``lr`` is 1 with a plan's factors and 0.001 without.
    ``settings`` go to ``orderone.plan``. Dropout is off. Generators of torch are left as they were.
    """
    chosen = _checked(widths, steps)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(chosen) * len(numbers) < 3:
        raise ConfigError(
            f"{len(chosen)} widths and {len(numbers)} seeds",
            expected="at least 3 models in all for a slope with an interval",
            do="give more widths or seeds",
        )
    frames: list[pl.DataFrame] = []
    plans: dict[int, Plan] = {}
    trials = [(width, seed) for seed in numbers for width in chosen]
    for done, (width, seed) in enumerate(trials, start=1):
        model = made(make, width, seed)
        plans[width] = plan(model, strategy, s=s, **(settings or {}))
        _require_width(plans)
        lesson = _lesson(model, batch, seed, inputs, loss)
        rows = _measured(model, plans[width], lesson, lr=lr, steps=steps, seed=seed)
        frame = pl.DataFrame(list(rows), schema=SCHEMA)
        frames.append(frame.with_columns(width=pl.lit(width), seed=pl.lit(seed)))
        if progress is not None:
            progress(done, len(trials))
    frame = pl.concat(frames)
    return Coordinates(
        strategy=next(iter(plans.values())).strategy,
        widths=tuple(chosen),
        frame=frame,
        lines=tuple(_lines(frame, plans, steps)),
    )


def made(make: Make, width: int, seed: int) -> nn.Module:
    """``make(width)``, drawn from ``seed``; torch's generators are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return required_module(make(width), f"make({width})")


def learning_rate(lr: float | None, plan: Plan) -> float:
    """The user's, or one at which a step is small and seen: 1 with factors, 0.001 without."""
    if lr is not None:
        return lr
    return 1e-3 if plan.strategy == "standard" else 1.0


def described(line: Line) -> str:
    """A line in words."""
    if line.slope is None:
        return f"{line.what}: does not move"
    known = "" if line.expected is None else f", expected {line.expected:+.2f}"
    interval = f"[{line.low:+.2f}, {line.high:+.2f}]"
    return f"{line.what}: n^{line.slope:+.2f} {interval}{known}: {line.verdict}"


def _lesson(
    model: nn.Module, batch: int, seed: int, inputs: Any, loss: Loss | None
) -> Callable[[], Tensor]:
    """The loss of the model as it is now, on one batch that never changes."""
    if inputs is None or loss is None:
        found = task(model)
        inputs = found.example(batch, seed) if inputs is None else inputs
        loss = found.loss if loss is None else loss
    computed, content = loss, inputs
    return lambda: computed(model, content)


def _measured(
    model: nn.Module,
    plan: Plan,
    lesson: Callable[[], Tensor],
    *,
    lr: float | None,
    steps: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Sizes before the first step and, with their changes, after every step."""
    groups = {row.name: gradient_group(row) for row in plan.rows}
    plan.initialize_(seed=seed)
    optimizer = torch.optim.AdamW(plan.param_groups(learning_rate(lr, plan)))
    with evaluating(model):
        before, g_before = forward_signals(model, lesson), _gradients(model, lesson)
        yield from _rows("size", 0, {**sizes(before), **gradient_sizes(g_before, groups)})
        for step in range(1, steps + 1):
            optimizer.step()
            after, g_after = forward_signals(model, lesson), _gradients(model, lesson)
            moved = {name: g_after[name] - g for name, g in g_before.items() if name in g_after}
            yield from _rows("size", step, {**sizes(after), **gradient_sizes(g_after, groups)})
            yield from _rows(
                "change", step, {**changes(after, before), **gradient_sizes(moved, groups)}
            )


def _gradients(model: nn.Module, lesson: Callable[[], Tensor]) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    lesson().backward()
    return gradients(model)


def _rows(quantity: Quantity, step: int, values: Mapping[Place, float]) -> Iterator[dict[str, Any]]:
    for (kind, where), value in values.items():
        yield {
            "kind": kind,
            "where": where,
            "quantity": quantity,
            "step": step,
            "value": value,
        }


def _lines(frame: pl.DataFrame, plans: Mapping[int, Plan], steps: int) -> Iterator[Line]:
    """A line for every place: its size at the start, and its change after the last step."""
    moments: tuple[tuple[Quantity, int], ...] = (("size", 0), ("change", steps))
    for quantity, step in moments:
        chosen = frame.filter(quantity=quantity, step=step)
        for (kind, where), points in chosen.group_by("kind", "where", maintain_order=True):
            # An expert that no word was sent to at some width has no law.
            if points["width"].n_unique() == len(plans) and len(points) >= 3:
                yield _line(Place(kind, where), quantity, step, points, plans)


def _line(
    place: Place, quantity: Quantity, step: int, points: pl.DataFrame, plans: Mapping[int, Plan]
) -> Line:
    slope = loglog_slope(points["width"].to_list(), points["value"].to_list())
    expected = expected_slope(place, quantity, plans)
    return Line(
        what=_what(place, quantity, step),
        kind=place.kind,
        where=place.where,
        quantity=quantity,
        step=step,
        slope=None if slope is None else slope.value,
        low=None if slope is None else slope.low,
        high=None if slope is None else slope.high,
        expected=expected,
        verdict=verdict(slope, expected, bound=place.kind == "gradient" and quantity == "change"),
    )


_NAMES = {"block": "z of ", "map": "map ", "logits": "attention logits of ", "gradient": "|g| of "}


_PLURALS = {
    "block": "z of blocks",
    "map": "outputs of maps",
    "logits": "attention logits",
    "gradient": "gradients by group",
    "output": "network output",
}


def _what(place: Place, quantity: Quantity, step: int) -> str:
    name = _NAMES.get(place.kind, "") + place.where
    if quantity == "size":
        return f"{name} at initialisation"
    return f"change of {name} after {step} step{'s' if step > 1 else ''}"


def _facet() -> pl.Expr:
    """Heading of a panel."""
    named = pl.col("kind").replace_strict({**_PLURALS})
    change = pl.format("change of {} after {} steps", named, "step")
    start = pl.format("{} at initialisation", named)
    return pl.when(pl.col("quantity") == "size").then(start).otherwise(change)


def _checked(widths: Sequence[int], steps: int) -> list[int]:
    chosen = sorted(set(widths))
    if len(chosen) < 2 or chosen[0] < 1 or steps < 1:
        raise ConfigError(
            f"widths {', '.join(map(str, widths)) or 'none'} and {steps} steps",
            expected="at least two positive widths and one step",
            do="for example widths 64,128,256",
        )
    return chosen


def _require_width(plans: Mapping[int, Plan]) -> None:
    """Refuse models whose width n does not follow the width asked for."""
    (first, small), (last, large) = min(plans.items()), max(plans.items())
    if first != last and small.width == large.width:
        raise ConfigError(
            f"models of n = {small.width} for both width {first} and width {last}",
            expected="a model that scales with the width",
            do="let make(width) use its argument",
        )
