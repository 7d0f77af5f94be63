"""Spikes acted upon: a run that rolls back ends as one that never saw the offending batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orderone.core.errors import ConfigError, RunError
from orderone.core.run import RunFolder
from orderone.data.batches import Batch
from orderone.training.course import Outcome
from orderone.training.loop import StepTaken
from orderone.training.losses import next_word_loss
from orderone.training.rollback import SpikesConfig, train

from .small import config, small, stream

RULE = SpikesConfig(window=8, threshold=12.0, margin=2, action="roll-back")
SETTINGS = {"steps": 40, "checkpoint_every": 5, "keep": 3, "evaluate_every": None}


@dataclass(frozen=True, kw_only=True)
class Poisoned(Batch):
    factor: float


class Source:
    """The stream of the small run; draws listed in ``poison`` multiply the loss.

    Draws listed in ``without`` never come: what rolling back must amount to.
    """

    def __init__(self, poison: dict[int, float], without: range = range(0)) -> None:
        self.inner, self.poison, self.without = stream(), poison, without
        self.drawn = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            batch, self.drawn = next(self.inner), self.drawn + 1
            if self.drawn not in self.without:
                return Poisoned(**vars(batch), factor=self.poison.get(self.drawn, 1.0))

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.inner.load_state_dict(state["inner"])
        self.drawn = state["drawn"]


def loss(model: nn.Module, batch: Poisoned) -> torch.Tensor:
    return batch.factor * next_word_loss(model, batch)


class Killed(BaseException):
    pass


def run(
    path: Path, source: Source, spikes: SpikesConfig = RULE, killed: list[int] | None = None
) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """The small run in ``path``, gone on where one is there; dies after step ``killed[0]``."""
    resumes = (path / "run.json").exists()
    folder = (
        RunFolder.open(path)
        if resumes
        else RunFolder.create(path, command="train", config={}, seed=0)
    )
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = small()

    def die(event: StepTaken) -> None:
        if killed and event.step == killed[0] and source.drawn > event.step:
            killed.pop()
            raise Killed

    outcome = train(
        model,
        [{"params": list(model.parameters())}],
        source,
        spikes=spikes,
        config=config(**SETTINGS),
        loss=loss,
        observers=[die],
        run=folder,
        resumes=resumes,
    )
    return outcome, {name: each.clone() for name, each in model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def rollbacks(path: Path) -> list[tuple[Any, ...]]:
    records = RunFolder.open(path).records()
    return records.filter(records["name"] == "rollback").select("step", "value", "began").rows()


def test_a_run_that_rolls_back_never_saw_the_batches(tmp_path: Path) -> None:
    """Draws 23 and 24 spike: back to 20, without draws 21 to 24, bit for bit."""
    outcome, weights = run(tmp_path / "a", Source({23: 40.0, 24: 40.0}))
    reference, expected = run(tmp_path / "b", Source({}, without=range(21, 25)))
    assert rollbacks(tmp_path / "a") == [(20, 4.0, "23")]
    assert outcome.steps == reference.steps == 40
    assert same(weights, expected)
    written, wanted = (RunFolder.open(tmp_path / name).records() for name in "ab")
    kept = written.filter(written["name"] != "rollback")
    assert kept.select("step", "name", "value").equals(wanted.select("step", "name", "value"))


def test_a_loss_without_a_number_is_rolled_back_too(tmp_path: Path) -> None:
    _, weights = run(tmp_path / "a", Source({23: float("nan")}))
    _, expected = run(tmp_path / "b", Source({}, without=range(21, 24)))
    assert rollbacks(tmp_path / "a") == [(20, 3.0, "23")]
    assert same(weights, expected)
    with pytest.raises(RunError, match="nan at step 23"):
        run(tmp_path / "c", Source({23: float("nan")}), SpikesConfig(window=8))


def test_two_rollbacks_to_one_checkpoint_skip_both_parts(tmp_path: Path) -> None:
    """After the first, draws 25 and 26 are steps 21 and 22: spiking, they are skipped as well."""
    poison = dict.fromkeys((23, 24, 27, 28), 40.0)
    _, weights = run(tmp_path / "a", Source(poison))
    _, expected = run(tmp_path / "b", Source({}, without=range(21, 29)))
    assert rollbacks(tmp_path / "a") == [(20, 4.0, "23"), (20, 4.0, "23")]
    assert same(weights, expected)


@pytest.mark.parametrize("step", [21, 24, 25, 26, 33])
def test_killed_after_rolling_back_it_skips_the_same(tmp_path: Path, step: int) -> None:
    poison = {23: 40.0, 24: 40.0}
    _, expected = run(tmp_path / "a", Source(poison))
    with pytest.raises(Killed):
        run(tmp_path / "b", Source(poison), killed=[step])
    _, weights = run(tmp_path / "b", Source(poison))
    assert rollbacks(tmp_path / "b") == rollbacks(tmp_path / "a")
    assert same(weights, expected)


def test_stops_at_an_excursion_and_keeps_a_checkpoint(tmp_path: Path) -> None:
    stop = SpikesConfig(window=8, threshold=12.0, action="stop")
    outcome, _ = run(tmp_path / "a", Source({23: 40.0, 24: 40.0}), stop)
    assert outcome.steps == 24
    assert (tmp_path / "a" / "checkpoints" / "step00000024").is_dir()


def test_goes_on_where_there_is_no_way_back(tmp_path: Path) -> None:
    """Before the first checkpoint, and after the last rollback that is allowed."""
    outcome, _ = run(tmp_path / "a", Source({6: 40.0, 7: 40.0}))
    assert (outcome.steps, rollbacks(tmp_path / "a")) == (40, [])
    none = SpikesConfig(window=8, threshold=12.0, margin=2, action="roll-back", most=0)
    outcome, _ = run(tmp_path / "b", Source({23: 40.0, 24: 40.0}), none)
    assert (outcome.steps, rollbacks(tmp_path / "b")) == (40, [])


def test_impossible_settings_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep = 3 checkpoints every 5 steps"):
        run(tmp_path / "a", Source({}), SpikesConfig(action="roll-back", margin=20))
    with pytest.raises(ConfigError, match="with no checkpoint_every"):
        train(small(), [], Source({}), spikes=RULE, config=config(checkpoint_every=None), loss=loss)
    with pytest.raises(ConfigError, match="with no run folder"):
        train(small(), [], Source({}), spikes=RULE, config=config(keep=9), loss=loss)
