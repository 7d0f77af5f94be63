"""A bar on standard error: loss, tokens a second, time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Shown while the block is open; ``quiet`` counts only."""

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        # On stderr: standard output holds the result alone.
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )
        self._task = self._bar.add_task("", total=steps, loss="–", rate="–")
        self._start = time.perf_counter()
        self.tokens = 0

    def begin(self, step: int) -> None:
        """The run goes on after ``step``; the clock starts."""
        self._bar.update(self._task, completed=step)
        self._start = time.perf_counter()

    def count(self, tokens: int) -> None:
        """So many tokens more were learned from."""
        self.tokens += tokens

    def show(self, step: int, loss: float) -> None:
        """A step's loss."""
        rate = f"{self.tokens_per_second:,.0f}"
        self._bar.update(self._task, completed=step, loss=f"{loss:.3f}", rate=rate)

    @property
    def seconds(self) -> float:
        """Since the run went on."""
        return time.perf_counter() - self._start

    @property
    def tokens_per_second(self) -> float:
        """Over all of this time, evaluation and checkpoints included."""
        return self.tokens / max(self.seconds, 1e-9)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
