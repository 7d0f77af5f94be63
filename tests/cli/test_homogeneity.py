"""``orderone homogeneity``: degrees by module, one JSON object, one line for bad input."""

import json
import sys
from pathlib import Path

import pytest

from orderone.cli import run
from orderone.core.run import RunFolder

FACTORY = """
import torch
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
def misfit():
    class Misfit(nn.Linear):
        def forward(self, x):
            return super().forward(x[:, :2])
    return Misfit(4, 3)
def constant():
    class Constant(nn.Linear):
        def forward(self, x):
            return x
    return Constant(4, 3)
def bounded():
    class Bounded(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return torch.cat([y, y * y], -1)[..., :3]
    return Bounded(4, 3)
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
        (["{}:misfit"], "a Misfit that fails on a guessed batch of inputs"),
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


def test_a_model_larger_than_the_memory_is_refused_and_a_narrow_one_is_not(
    models: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """r2c2 has 2.7·10⁹ parameters: 20 GiB in float64."""
    command = sys.modules["orderone.cli.homogeneity"]  # of the package it is the function
    monkeypatch.setattr(command, "_free_memory", lambda: 2**30)
    assert run(["homogeneity", "preset:r2c2"]) == 2
    said = capsys.readouterr().err
    assert "20.0 GiB in float64; expected at most four fifths of the 1.0 GiB" in said
    assert said.count("\n") == 1
    assert run(["homogeneity", "preset:small-lm-branch", "--width", "24", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["degree"] == 2


def test_what_depends_on_nothing_and_what_is_only_bounded_are_said(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["homogeneity", f"{models}:constant", "--to", "constant"]) == 0
    assert "depends on no scaled parameter" in capsys.readouterr().out
    assert "<svg" not in Path("constant/report.html").read_text()
    assert run(["homogeneity", f"{models}:bounded"]) == 0
    assert "All leading coefficients are 0: 2 is a bound" in capsys.readouterr().out
    assert run(["homogeneity", f"{models}:bounded", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vanishes"] is True
