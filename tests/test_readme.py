"""The README's lines give the output that the README shows."""

import doctest
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_readme_lines_print_what_they_show() -> None:
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert tried >= 10
    assert failed == 0
