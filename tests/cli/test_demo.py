"""The tour: every stop's sentence, numbers and picture, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderone.cli import run
from orderone.cli.demo import has_desktop
from orderone.core.run import RunFolder
from orderone.trajectory.series import trajectory
from orderone.trajectory.told import Trajectory

STOPS = ["plan", "check", "theory", "training", "trajectory", "saturation", "heads"]


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """A quick tour, and what it printed."""
    where = tmp_path_factory.mktemp("tour") / "run"
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("typer.echo", lambda text, err=False: said.append(text))
        assert run(["demo", "--quick", "--to", str(where), "--json"]) == 0
    assert len(said) == 1
    return RunFolder.open(where), json.loads(said[0])


@pytest.fixture(scope="module")
def series(toured: tuple[RunFolder, dict[str, Any]]) -> Trajectory:
    """The tour's checkpoints, read again."""
    return trajectory(toured[0].path / "training" / "checkpoints")


def test_every_stop_speaks_in_the_order_of_before_during_after(toured) -> None:
    folder, printed = toured
    assert list(printed["stops"]) == STOPS
    assert printed["run"] == str(folder.path)
    assert folder.result["status"] == "done"
    assert list(folder.result["summary"]) == ["seconds", *STOPS]


def test_plan_states_the_rules_factors(toured) -> None:
    """AdamW's factor of Q, fans (n, n): (1/n) n^(s/2) / √n, and 1 under standard."""
    found = toured[1]["stops"]["plan"]
    n = found["width"]
    expected = {name: n ** (s / 2 - 1.5) for name, s in STRATEGIES.items()}
    assert found["factors"] == pytest.approx({"standard": 1.0, **expected})


STRATEGIES = {"neural-tangent": 0.0, "hybrid": 0.5, "maximal-update": 1.0}


def test_numbers_are_those_of_the_run_folders(toured, series: Trajectory) -> None:
    folder, printed = toured
    stops = printed["stops"]
    losses = RunFolder.open(folder.path / "training").records().filter(name="loss")
    validation = losses.filter(split="validation").sort("step")["value"]
    assert stops["training"]["loss_before"] == validation[0]
    assert stops["training"]["loss_after"] == validation[-1]
    assert stops["trajectory"]["checkpoints"] == len(series.steps)
    assert stops["trajectory"]["law"] == json.loads(json.dumps(series.laws["total"].as_json()))
    saturation = folder.records().filter(name="saturation")
    for network, cosines in stops["saturation"]["layers"].items():
        assert saturation.filter(network=network)["value"].to_list() == cosines


def test_the_watch_saw_the_training(toured, series: Trajectory) -> None:
    """‖θ‖ as the watch had it is ‖θ‖ as the checkpoint of that step has it."""
    folder, _ = toured
    seen = RunFolder.open(folder.path / "watch").records().filter(name="norm", by="total")
    watched = dict(zip(seen["step"].to_list(), seen["value"].to_list(), strict=True))
    kept = dict(zip(series.steps, series.groups["total"].norm.tolist(), strict=True))
    common = sorted(watched.keys() & kept.keys())
    assert common
    assert [watched[step] for step in common] == pytest.approx([kept[step] for step in common])


def test_page_says_every_sentence_and_draws_every_stop(toured) -> None:
    printed = toured[1]
    page = Path(printed["report"]).read_text(encoding="utf-8")
    for stop in printed["stops"].values():
        assert stop["found"].split(",")[0].replace("'", "&#39;") in page
    assert page.count("<svg") >= len(STOPS) - 1  # the plan is a table


def test_learns_more_than_guessing(toured) -> None:
    found = toured[1]["stops"]["training"]
    assert found["loss_after"] < found["loss_of_guessing"] - 0.5


def test_does_not_overwrite_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    assert run(["demo", "--quick", "--to", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "kept.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("environment", "platform", "terminal", "opens"),
    [
        ({"DISPLAY": ":0"}, "linux", True, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True, True),
        ({}, "darwin", True, True),
        ({}, "linux", True, False),
        ({"DISPLAY": ":0"}, "linux", False, False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", True, False),
        ({"SSH_CONNECTION": "a b c d"}, "darwin", True, False),
    ],
)
def test_a_page_opens_only_before_someone(environment, platform, terminal, opens) -> None:
    assert has_desktop(environment, platform, terminal=terminal) is opens
