"""The command line's contract: exit codes, one line an error, JSON alone on standard output."""

from __future__ import annotations

import pytest

from orderone import __version__
from orderone.cli import run


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"orderone {__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["demo", "--no-such"],
        ["demo", "--seed", "soon"],
        ["demo", "--seed", "-1"],
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
