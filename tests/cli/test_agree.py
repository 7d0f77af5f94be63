"""``orderone agree``: what it prints and keeps, its exit code, and one line for bad input."""

import json
from pathlib import Path

import numpy as np
import pytest

from orderone.cli import run
from orderone.core.run import RunFolder
from orderone.experiments import agreement

SPEC = """
stem = "language"
inputs = [[0, 1, 2], [1, 3, 1]]
encoders = 1
causal = true
samples = 2048
recursions = 8
seed = 3
[C]
position = 0.5
"""
FEW = ["--widths", "16,32", "--networks", "6"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def test_agreement_exits_0_and_prints_one_object(spec, tmp_path, capsys):
    folder = tmp_path / "a"
    assert run(["agree", str(spec), *FEW, "--json", "--to", str(folder)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "agree.json").read_text())
    assert printed["verdict"] == "holds"
    assert printed["head_dim"] == 16
    names = ["stem", "encoder.0.attention", "encoder.0.mlp", "head"]
    assert [block["name"] for block in printed["blocks"]] == names
    for block in printed["blocks"]:
        for quantity in ("G", "F", "Theta"):
            assert all(np.shape(K) == (6, 6) for K in block[quantity].values())
    assert {line["width"] for line in printed["lines"]} == {16, 32}
    assert len(printed["lines"]) == 2 * 3 * 4


def test_a_run_folder_with_a_page_is_left(spec, tmp_path, capsys):
    folder = tmp_path / "a"
    assert run(["agree", str(spec), *FEW, "--heads", "2", "--to", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "agree in all 24 kernels" in out
    assert "2 heads, whose scores" in out
    # F off the diagonal, where it is not 1 of itself: 3 pairs share a word and 3 a position of 15.
    rows = [line.split() for line in out.splitlines()]
    assert next(row[2] for row in rows if row[:2] == ["F", "stem"]) == "0.2000"
    assert next(row for row in rows if row[:1] == ["kernel"])[-1] == "verdict"
    page = (folder / "report.html").read_text()
    assert page.count('class="marks"') == 7
    assert ">held<" in page
    kept = RunFolder.open(folder)
    assert kept.result is not None
    assert kept.config["heads"] == 2
    assert {"predicted", "measured", "error", "overlap"} == set(kept.records()["name"])


def test_disagreement_exits_1_and_says_where(spec, tmp_path, capsys, monkeypatch):
    """The networks' Λ_X is not the prediction's."""
    right = agreement.FiniteNetwork.of

    def wrong(spec, n, heads=None):
        return right(spec.replace(Lambda={"X": 8.0}), n, heads)

    monkeypatch.setattr(agreement.FiniteNetwork, "of", wrong)
    words = ["--widths", "64", "--networks", "8", "--to", str(tmp_path / "a")]
    assert run(["agree", str(spec), *words]) == 1
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("Θ")]
    assert [("exact" in row, "one width" in row) for row in rows] == [(True, False)] + [
        (False, True)
    ] * 3
    assert "disagree in" in out
    assert "Theta of encoder.0.mlp at n = 64" in out
    assert ">not held<" in (tmp_path / "a" / "report.html").read_text()
    summary = RunFolder.open(tmp_path / "a").result["summary"]
    assert summary["verdict"] == "does not hold"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--widths", "16,many"], "--widths 16,many"),
        (["--widths", "16", "--networks", "2"], "at least 4 networks"),
        (["--widths", "17", "--heads", "4"], "width 17 with 4 heads"),
    ],
)
def test_bad_input_is_one_line(spec, words, said, capsys):
    assert run(["agree", str(spec), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
