"""``orderone kernels``: what it prints and keeps, and one line for bad input."""

import json

import numpy as np
import pytest

from orderone.cli import run
from orderone.theory.kernels import kernels
from orderone.theory.spec import read_spec

SPEC = """
stem = "language"
inputs = [[0, 1], [1, 2]]
encoders = 1
causal = true
activation = "tanh"
epsilon = 1e-6
pool = "none"
samples = 2048
seed = 3
{more}
[C]
word = 0.5
Q = 0.7
[Lambda]
X = 2.0
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(more=""))
    return path


def test_json_is_the_functions_and_nothing_else(spec, tmp_path, capsys):
    assert run(["kernels", str(spec), "--json", "--to", str(tmp_path / "a")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == kernels(read_spec(spec)).to_json()
    assert json.loads((tmp_path / "a" / "kernels.json").read_text()) == printed
    names = [block["name"] for block in printed["blocks"]]
    assert names == ["stem", "encoder.0.attention", "encoder.0.mlp", "head"]
    assert np.shape(printed["blocks"][-1]["Theta_se"]) == (4, 4)


def test_a_run_folder_with_a_page_is_left(spec, tmp_path, capsys):
    folder = tmp_path / "a"
    assert run(["kernels", str(spec), "--to", str(folder), "--samples", "4096"]) == 0
    out = capsys.readouterr().out
    assert "encoder.0.mlp" in out
    page = (folder / "report.html").read_text()
    assert page.count("<svg xmlns=") == 3  # the charts; the page's own scripts draw others
    description = json.loads((folder / "run.json").read_text())
    assert description["config"]["spec"]["samples"] == 4096
    assert description["seed"] == 3
    entries = (folder / "records.jsonl").read_text().splitlines()
    assert len(entries) == 3 * 4 * 16


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("heads = 4", "unknown setting 'heads'"),
        ("n_vocab = 2", "token 2 in inputs"),
        ("encoders = 2", "TOML"),
        ('input_kernel = "x.npy"', "one of them"),
    ],
)
def test_bad_input_is_one_line(more, said, tmp_path, capsys):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(more=more))
    assert run(["kernels", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_missing_spec_is_one_line(tmp_path, capsys):
    assert run(["kernels", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_tied_head_says_whose_constants_it_has(tmp_path, capsys):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(more="").replace("Q = 0.7", "Q = 0.7\nhead = 2.0"))
    assert run(["kernels", str(path), "--to", str(tmp_path / "a"), "--samples", "256"]) == 0
    assert "constants are those of word" in capsys.readouterr().out
