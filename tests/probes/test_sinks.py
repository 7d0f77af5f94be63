"""Records reach every sink; a killed run leaves a file that can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ConfigError, MissingPackageError, RunError
from orderone.core.record import Record, read_records
from orderone.core.run import RunFolder
from orderone.probes import sinks

RUN = """
import sys, torch, orderone
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = orderone.watch(model, optimizer, to=sys.argv[1], every=1)
while True:
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if watch.steps == 200:
        print("now", flush=True)
"""


def test_a_run_killed_at_work_leaves_whole_steps_that_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", RUN, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        os.kill(process.pid, signal.SIGKILL)
    frame = read_records(folder / "records.jsonl")
    assert frame["step"].max() >= 150  # at most the 16 last steps were not yet written
    assert frame["step"].unique().sort().to_list() == list(range(1, frame["step"].max() + 1))
    assert RunFolder.open(folder).result is None


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def test_the_run_says_how_it_ended(tmp_path: Path) -> None:
    for name, error in (("a", None), ("b", ValueError("x"))):
        model, optimizer = small()
        try:
            with orderone.watch(model, optimizer, to=tmp_path / name, every=2):
                take_steps(model, optimizer, 3)
                if error:
                    raise error
        except ValueError:
            pass
        result = RunFolder.open(tmp_path / name).result
        assert result is not None
        assert result["status"] == ("failed" if error else "done")
        assert result["summary"] == {"steps": 3}
        assert set(read_records(tmp_path / name / "records.jsonl")["step"]) == {2}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    model, optimizer = small()
    with pytest.raises(RunError, match="not empty"):
        orderone.watch(model, optimizer, to=tmp_path)
    assert not optimizer._optimizer_step_pre_hooks


class FakeRuns(types.ModuleType):
    """What wandb offers, as far as we use it."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__("wandb")
        self.run: Any = object() if begun else None
        self.logged: list[dict[str, float]] = []
        self.finished = False

    def init(self, **_: Any) -> None:
        self.run = object()

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_elsewhere_gets_one_log_a_step_and_a_users_own_stays_open(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = FakeRuns(begun=begun)
    monkeypatch.setattr(sinks, "find_spec", lambda name: name)
    monkeypatch.setattr(sinks, "import_module", lambda name: package)
    sink = sinks.sink("wandb", tmp_path)
    sink.write_all([Record(1, "norm", 2.0, {"by": "layer", "group": "3"}), Record(1, "loss", 4.0)])
    sink.write_all([Record(2, "loss", 3.0)])
    sink.close()
    assert package.logged == [
        {"norm/layer/3": 2.0, "loss": 4.0, "orderone/step": 1},
        {"loss": 3.0, "orderone/step": 2},
    ]
    assert package.finished == (not begun)


def test_a_sink_whose_package_is_absent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with pytest.raises(MissingPackageError, match=name):
            sinks.sink(name, tmp_path)


def test_names_of_sinks_need_a_folder() -> None:
    model, optimizer = small()

    class Nowhere:
        def write_all(self, records: Any) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...

    with pytest.raises(ConfigError, match="beside an object"):
        orderone.watch(model, optimizer, to=Nowhere(), also=["wandb"])


def test_tensorboard_reads_back_what_was_recorded(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, optimizer = small()
    with orderone.watch(model, optimizer, to=tmp_path / "a", every=1, also=["tensorboard"]):
        take_steps(model, optimizer, 3)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    frame = read_records(tmp_path / "a" / "records.jsonl")
    own = frame.filter((frame["name"] == "norm") & (frame["by"] == "total"))
    scalars = events.Scalars("norm/total/total")
    assert [each.step for each in scalars] == own["step"].to_list()
    assert [each.value for each in scalars] == pytest.approx(own["value"].to_list(), rel=1e-6)
