"""An experiment leaves a verdict, records and a page; the command line tells what was found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from orderone.cli import run
from orderone.core.errors import ConfigError
from orderone.core.run import RunFolder
from orderone.experiments.reproduction import NAMES, claim, experiment, particulars, reproduce
from orderone.experiments.reproductions import counting, learning_rate_factors
from orderone.scaling.monomial import ONE


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_says_what_it_is(name: str) -> None:
    assert claim(name)
    assert {"Source", "Expect", "Cost"} <= set(particulars(name))
    assert experiment(name).PUBLISHED
    assert experiment(name).paper().memory_bytes >= 0


@pytest.mark.parametrize("name", ["learning-rate-factors", "counting"])
def test_exact_claims_hold_and_are_kept(name: str, tmp_path: Path) -> None:
    verdict = reproduce(
        name, scale="smoke", to=tmp_path / "run", seed=0, progress=lambda done, total: None
    )
    assert verdict.held
    folder = RunFolder.open(tmp_path / "run")
    assert folder.result is not None
    assert folder.result["summary"] == asdict(verdict)
    assert len(folder.records())
    assert verdict.measured in (tmp_path / "run" / "report.html").read_text()


def test_a_cell_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(learning_rate_factors.ADAMW, "W", ONE)
    verdict = reproduce(
        "learning-rate-factors",
        scale="smoke",
        to=tmp_path / "run",
        seed=0,
        progress=lambda done, total: None,
    )
    assert verdict.held is False
    assert "AdamW W" in verdict.why


def test_a_recogniser_that_errs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = counting.Recognizer(9)
    right, tried = counting._all_strings(model, 6)
    assert (right, tried) == (0, 3**6)
    monkeypatch.setattr(model, "forward", lambda tokens: tokens[:, 0] - 1.0)
    wrong, _ = counting._all_strings(model, 6)
    assert wrong == 3**5 + 1  # every string that begins with c, and aabbcc itself


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "learning-rate-factors", "--to", str(tmp_path), "--json"]
    assert run(words) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert list(result) == [
        "name",
        "claim",
        "published",
        "measured",
        "held",
        "as_coded",
        "scale",
        "seconds",
    ]


@pytest.mark.parametrize(
    "words",
    [["reproduce"], ["reproduce", "no-such"], ["reproduce", "counting", "--scale", "galaxy"]],
)
def test_bad_names_and_scales_are_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(ConfigError, match="experiment 'no-such'"):
        experiment("no-such")
