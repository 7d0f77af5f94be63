"""A run ends where its numbers do, names the step, and its observers are heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orderone.core.errors import RunError
from orderone.core.record import Record
from orderone.core.run import RunFolder
from orderone.training import checkpoint
from orderone.training.course import Setting, train
from orderone.training.losses import next_word_loss

from .small import config, small, stream, trained


def run_in(path: Path) -> RunFolder:
    return RunFolder.create(path, command="train", config={}, seed=0)


def lost_at(step: int, value: float) -> Any:
    """A loss that is no number in that step."""
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        found = next_word_loss(model, batch)
        return found * value if calls == step else found

    return loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_lost_loss_stops_the_run_and_names_the_step(tmp_path: Path, value: float) -> None:
    model, run = small(), run_in(tmp_path / "run")
    with pytest.raises(RunError, match=rf"loss is {value} at step 8.*of step 6 stays") as caught:
        train(
            model,
            [{"params": list(model.parameters())}],
            stream(),
            loss=lost_at(8, value),
            config=config(),
            run=run,
        )
    assert "\n" not in str(caught.value)
    assert list(checkpoint.steps(run.checkpoints)) == [6, 3]
    assert checkpoint.damage(run.checkpoints / "step00000006") is None
    assert run.records()["step"].max() == 8


def test_a_lost_gradient_is_not_kept_in_a_checkpoint(tmp_path: Path) -> None:
    """At step 9 a checkpoint is due; the loss is still a number, the gradient is not."""
    model, run = small(), run_in(tmp_path / "run")
    calls = 0

    def loss(network: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        found = next_word_loss(network, batch)
        # √x at x = 0 has an infinite slope, and 0·∞ is no number.
        return found + (found * 0.0).sqrt() if calls == 9 else found

    with pytest.raises(RunError, match="gradient's norm is nan at step 9"):
        train(
            model,
            [{"params": list(model.parameters())}],
            stream(),
            loss=loss,
            config=config(),
            run=run,
        )
    assert list(checkpoint.steps(run.checkpoints)) == [6, 3]


def test_observers_that_attach_hear_every_step_and_may_stop(tmp_path: Path) -> None:
    model, run = small(), run_in(tmp_path / "run")
    settings: list[Setting] = []

    def attach(setting: Setting) -> list[Any]:
        settings.append(setting)

        def observe(event: Any) -> bool:
            assert setting.records is not None
            setting.records.write(
                Record(event.step, "mine", setting.optimizer.param_groups[0]["lr"])
            )
            return event.step < 5

        return [observe]

    outcome = train(
        model,
        [{"params": list(model.parameters())}],
        stream(),
        loss=next_word_loss,
        config=config(),
        attach=attach,
        run=run,
    )
    assert outcome.steps == 5
    mine = run.records().filter(name="mine")
    assert mine["step"].to_list() == [1, 2, 3, 4, 5]
    assert mine["value"].to_list() == run.records().filter(name="lr")["value"].to_list()
    assert list(checkpoint.steps(run.checkpoints)) == [5, 3]
    assert settings[0].model is model


def test_deterministic_algorithms_inside_and_not_after(tmp_path: Path) -> None:
    heard: list[bool] = []
    trained(
        tmp_path / "run",
        config(deterministic=True, steps=6),
        observers=[lambda _: heard.append(torch.are_deterministic_algorithms_enabled())],
    )
    assert heard == [True] * 6
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_record_is_there_once(tmp_path: Path) -> None:
    trained(tmp_path / "run", config())
    records = RunFolder.open(tmp_path / "run").records()
    for name in ("lr", "gradient_norm_before_clipping"):
        assert records.filter(name=name)["step"].to_list() == list(range(1, 25))
    assert records.filter(split="train")["step"].to_list() == list(range(1, 25))
    assert records.filter(split="validation")["step"].to_list() == list(range(0, 25, 4))
