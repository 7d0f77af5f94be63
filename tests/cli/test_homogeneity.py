"""``orderone homogeneity``: degrees by module, one JSON object, one line for bad input."""

import json
from pathlib import Path

import pytest

from orderone.cli import run
from orderone.core.run import RunFolder

FACTORY = """
from torch import nn
def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
def biasless():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
def sine():
    class Sine(nn.Linear):
        def forward(self, x):
            return super().forward(x).sin()
    return Sine(4, 3)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "small_models.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)  # run folders go to the current directory
    return "small_models"


def test_modules_and_their_degrees(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["homogeneity", f"{models}:mlp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:4]] == [
        ["0", "degree", "1"],
        ["1", "degree", "1"],
        ["2", "degree", "2"],
        ["(model)", "degree", "2"],
    ]
    assert "[degree 1 is dominated]" in lines[2]
    assert lines[4].startswith("f(x; cθ) / c^2 has a limit")


def test_json_tells_an_exact_degree(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["homogeneity", f"{models}:biasless", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["degree"], found["exact"], found["beside"]) == (2.0, True, [])
    assert found["operations"][-1]["inputs"][-1] == {"from": "2.weight", "degree": 1.0}


def test_a_run_folder_with_a_page_is_left(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["homogeneity", f"{models}:mlp", "--to", "run"]) == 0
    assert capsys.readouterr().out.endswith("Page: run/report.html\n")
    kept = RunFolder.open("run")
    assert kept.records()["value"].to_list()[-1] == 2.0
    assert kept.result is not None
    assert kept.result["summary"]["degree"] == 2.0
    assert "<svg" in (kept.path / "report.html").read_text()


def test_unscaled_parameters_lower_the_degree(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["homogeneity", f"{models}:mlp", "--unscaled", "bias|2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["degree"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}:sine"], "aten.sin of a value of degree 1"),
        (["{}:mlp", "--unscaled", "("], "--unscaled '('"),
        (["{}:mlp", "--unscaled", "head"], "found in none of 4 parameters"),
        (["{}:mlp", "--unscaled", "."], "without scaled parameters"),
    ],
)
def test_bad_input_is_one_line(
    models: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["homogeneity", *(each.format(models) for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
