"""The README's lines give the output that the README shows, and its table is the verdicts'."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SPEC = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
assert SPEC is not None
assert SPEC.loader is not None
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


def test_readme_lines_print_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    failed, tried = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert tried >= 10
    assert failed == 0


def test_readme_table_is_that_of_the_verdicts() -> None:
    text = README.read_text(encoding="utf-8")
    assert pages.readme(text, pages.results()) == text, "run ./dev docs"


def test_pages_of_reproductions_are_those_of_the_verdicts() -> None:
    made = pages.pages(pages.results())
    kept = {each.name: each.read_text(encoding="utf-8") for each in pages.PAGES.glob("*.md")}
    assert kept == made, "run ./dev docs"


def test_readme_names_every_command_and_no_other() -> None:
    from orderone.cli import app

    known = {info.name or info.callback.__name__ for info in app.registered_commands}
    block = README.read_text(encoding="utf-8").split("## The same on the command line")[1]
    listed = set(re.findall(r"[a-z]+", block.split("\n\n")[1])) - {"orderone"}
    assert listed == known


def test_a_cell_ends_between_clauses_outside_of_brackets() -> None:
    short, inside = "one, two", "(" + "a, " * pages.ROOM + "b)"
    assert pages.brief(short) == short
    assert pages.brief(f"{short}; {inside}; three") == f"{short} …"
    assert pages.brief(f"{inside}, two") == f"{inside} …"
    assert pages.brief(inside) == inside
