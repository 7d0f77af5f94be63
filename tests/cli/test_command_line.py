"""The command line's contract: exit codes, one line an error, JSON alone on standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from orderone import __version__
from orderone.cli import run
from orderone.core.run import RunFolder


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"orderone {__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["demo", "--no-such"],
        ["demo", "--seconds", "soon"],
        ["demo", "--seconds", "0"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("orderone: ")
    assert err.count("\n") == 1


def test_demo_leaves_a_run_that_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "run"
    assert run(["demo", "--seconds", "1", "--to", str(where), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    folder = RunFolder.open(where)
    records = folder.records()
    training = records.filter(name="loss", split="train")
    assert printed["run"] == str(where)
    assert training["step"].to_list() == list(range(1, printed["steps"] + 1))
    validation = records.filter(name="loss", split="validation").sort("step")["value"]
    assert validation[0] == printed["loss_before"]
    assert validation[-1] == printed["loss_after"]
    weights = load_file(folder.checkpoints / f"step{printed['steps']}.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == printed["parameters"]
    assert "<svg" in (where / "report.html").read_text()


def test_demo_does_not_overwrite_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    assert run(["demo", "--seconds", "1", "--to", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "kept.txt").read_text() == "mine"
