"""Spikes in the middle of training: in the loss and in the gradient's norm, [DYZ23] §II.1.

The paper counts them by eye. Here a value is far when its logarithm lies ``threshold`` robust
scales above the running median. An excursion is ``persistence`` far values in a row. When it comes
back within ``longest`` steps it was a spike; a level that stays is a shift, and no spike.

Robust scale: 1.4826 × the median of |log x − median|, the standard deviation of normal noise. A
value that falls, as in learning, is never far; neither is one that rises evenly, since a line's own
median deviation widens the scale: its end lies (W/2)/(1.4826 W/4) = 1.35 scales above the median.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field, PositiveInt

from orderone.core.record import Record, RecordWriter, read_records
from orderone.training.config import Positive, Settings
from orderone.training.course import Setting
from orderone.training.loop import StepTaken

Kind = Literal["spike", "shift"]
Quantity = Literal["loss", "gradient_norm"]

RECORDED: dict[Quantity, pl.Expr] = {
    "loss": (pl.col("name") == "loss") & (pl.col("split") == "train"),
    "gradient_norm": pl.col("name") == "gradient_norm_before_clipping",
}
"""Where a run's own records hold what the detectors saw."""

_NORMAL = 1.4826  # standard deviation of normal noise / its median absolute deviation
_SMALLEST = 1e-300  # in place of 0, which has no logarithm
_DRAIN_ON_DEVICE = 16
"""Steps whose numbers are fetched together from an accelerator, which need not wait for us."""


class SpikeRule(Settings):
    """When a value is an excursion, and when an excursion is a spike."""

    window: Annotated[int, Field(ge=8)] = 100
    """Values of the running median; none is judged before half of them were seen."""
    threshold: Positive = 6.0
    """Robust scales above the median at which a value is far; it is back at half of that."""
    persistence: PositiveInt = 2
    """Far values in a row, below which nothing happened: one batch may be odd."""
    longest: PositiveInt = 200
    """Steps after which an excursion is a new level."""
    least: Positive = 0.002
    """Smallest scale of a logarithm: of numbers that hardly vary, every change is not far."""


@dataclass(frozen=True, kw_only=True)
class Excursion:
    """A time in which a value was far above its running median."""

    kind: Kind
    which: Quantity
    began: int
    ended: int
    """The first step that was back; of a shift, the step at which it was taken for one."""
    height: float
    """The largest value over the median before; ∞ where the value was not finite."""

    def record(self) -> Record:
        """``spike`` or ``shift`` at the step where it ended: only then is it known which it is."""
        labels = {"which": self.which, "began": str(self.began)}
        return Record(self.ended, self.kind, self.height, labels)


class Detector:
    """Told one value after the other, says when an excursion ends; positive values."""

    def __init__(self, which: Quantity, rule: SpikeRule) -> None:
        self.which: Quantity = which
        self.rule = rule
        self._recent = deque[float]()
        self._sorted: list[float] = []
        self._far: list[tuple[int, float]] = []
        self._median = math.nan

    @property
    def began(self) -> int | None:
        """The step at which the excursion began that is going on; None in calm."""
        going = len(self._far) >= self.rule.persistence
        return self._far[0][0] if going else None

    def tell(self, step: int, value: float) -> Excursion | None:
        """The excursion that ends with this value, if one does."""
        x = math.log(max(value, _SMALLEST)) if math.isfinite(value) else math.inf
        if len(self._recent) < self.rule.window // 2:
            self._learn(x)
            return None
        if self.began is None:
            self._calm(step, x)
            return None
        return self._going(step, x)

    def _calm(self, step: int, x: float) -> None:
        if not self._far:
            self._median = _middle(self._sorted)
        if x > self._median and x > self._median + self.rule.threshold * self._scale():
            self._far.append((step, x))
            if x == math.inf:  # no need to wait: no batch is that odd
                self._far += [(step, x)] * (self.rule.persistence - len(self._far))
            return
        self._forget(x)

    def _going(self, step: int, x: float) -> Excursion | None:
        began, height = self._far[0][0], max(x for _, x in self._far) - self._median
        if x < self._median + self.rule.threshold * self._scale() / 2:
            self._far.clear()  # what lay far is no part of the level
            self._learn(x)
            return self._excursion("spike", began, step, height)
        self._far.append((step, x))
        if step - began < self.rule.longest:
            return None
        self._recent.clear()
        self._sorted.clear()
        self._forget()
        return self._excursion("shift", began, step, max(height, x - self._median))

    def _excursion(self, kind: Kind, began: int, ended: int, height: float) -> Excursion:
        ratio = math.exp(height) if height < 700 else math.inf
        return Excursion(kind=kind, which=self.which, began=began, ended=ended, height=ratio)

    def _forget(self, *more: float) -> None:
        """Far values that did not persist, or became the level, are values like others."""
        for x in [*(x for _, x in self._far), *more]:
            self._learn(x)
        self._far.clear()

    def _learn(self, x: float) -> None:
        if not math.isfinite(x):
            return
        self._recent.append(x)
        insort(self._sorted, x)
        if len(self._recent) > self.rule.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def _scale(self) -> float:
        deviations = sorted(abs(x - self._median) for x in self._sorted)
        return max(_NORMAL * _middle(deviations), self.rule.least)


def _middle(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def excursions(
    values: Iterable[tuple[int, float]],
    which: Quantity = "loss",
    rule: SpikeRule | None = None,
) -> Iterator[Excursion]:
    """Those of a whole series of (step, value), as an observer would have found them."""
    detector = Detector(which, rule or SpikeRule())
    for step, value in values:
        found = detector.tell(step, value)
        if found is not None:
            yield found


class SpikeWatch:
    """An observer of the training loop: excursions of the loss and of the gradient's norm.

    Its state is a function of the run's own records, from which a resumed run takes it back: no
    excursion is recorded twice or missed.
    """

    def __init__(
        self,
        rule: SpikeRule,
        *,
        records: RecordWriter | None = None,
        every: int = 1,
        scaled: bool = False,
    ) -> None:
        """``scaled``: of a loss scaled for half precision, whose overflows are steps skipped."""
        found: dict[Quantity, Detector] = {}
        for which in RECORDED:
            found[which] = Detector(which, rule)
        self._detectors = found
        self._records = records
        self._scaled = scaled
        self._every = every
        self._pending: list[StepTaken] = []
        self.found: list[Excursion] = []
        """Every excursion so far."""

    @classmethod
    def attached(cls, rule: SpikeRule, setting: Setting, *, scaled: bool = False) -> SpikeWatch:
        """For a run that may be a resumed one."""
        every = 1 if setting.ranks.device.type == "cpu" else _DRAIN_ON_DEVICE
        watch = cls(rule, records=setting.records, every=every, scaled=scaled)
        if setting.records is not None and setting.first > 0:
            setting.records.flush()
            watch._replay(setting.records.path, setting.first)
        return watch

    @property
    def began(self) -> dict[Quantity, int]:
        """The excursions that are going on, by the step at which they began."""
        going: dict[Quantity, int] = {}
        for which, each in self._detectors.items():
            if each.began is not None:
                going[which] = each.began
        return going

    def __call__(self, event: StepTaken) -> None:
        self._pending.append(event)
        if event.step % self._every:
            return
        events, self._pending = self._pending, []
        for each in events:
            self._tell(each.step, "loss", each.loss.item())
            if each.gradient_norm is not None:
                self._tell(each.step, "gradient_norm", each.gradient_norm.item())

    def _tell(self, step: int, which: Quantity, value: float) -> None:
        if self._scaled and which == "gradient_norm" and not math.isfinite(value):
            return
        found = self._detectors[which].tell(step, value)
        if found is not None:
            self.found.append(found)
            if self._records is not None:
                self._records.write(found.record())

    def _replay(self, path: Path, until: int) -> None:
        """The detectors as they were at step ``until``; what they then knew and no record says."""
        frame = read_records(path).filter(pl.col("step") <= until)
        for name in ("split", "which", "began"):
            if name not in frame.columns:
                frame = frame.with_columns(pl.lit(None, pl.String).alias(name))
        written = frame.filter(pl.col("name").is_in(["spike", "shift"]))
        known = set(written.select("step", "name", "which", "began").iter_rows())
        records, self._records = self._records, None
        for which, chosen in RECORDED.items():
            for step, value in frame.filter(chosen).select("step", "value").iter_rows():
                self._tell(step, which, value)
        self._records = records
        self.found.sort(key=lambda each: (each.ended, each.which != "loss"))
        for each in self.found:
            line = each.record()
            named = (line.step, line.name, each.which, str(each.began))
            if records is not None and named not in known:
                records.write(line)
