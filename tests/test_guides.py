"""The guides' lines give the output that the guides show, and their commands are there."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer

from orderone.cli import app

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = sorted(DOCS.glob("guides/*.md"))
PAGES = [DOCS.parent / "README.md", *GUIDES]
FENCED = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_lines_print_what_they_show(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    failed, tried = doctest.testfile(
        str(guide), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert tried >= 5
    assert failed == 0


def commands(text: str) -> list[list[str]]:
    """Words of every command line in a fenced block."""
    blocks = "\n".join(FENCED.findall(text)).splitlines()
    return [
        shlex.split(line.partition("  #")[0])[1:] for line in blocks if line.startswith("orderone ")
    ]


SHOWN = [(page.stem, words) for page in GUIDES for words in commands(page.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=lambda each: " ".join(each)[:60])
def test_commands_are_understood(page: str, words: list[str]) -> None:
    """Parsed, not run: the command is there, and takes these options and values."""
    group = typer.main.get_command(app)
    name, command, rest = group.resolve_command(
        group.make_context("orderone", [], resilient_parsing=True), words
    )
    assert command is not None, name
    command.make_context(name, rest, resilient_parsing=False)


def test_guides_show_every_command() -> None:
    known = {info.name or info.callback.__name__ for info in app.registered_commands}
    text = "\n".join(page.read_text("utf-8") for page in GUIDES)
    assert known <= set(re.findall(r"orderone ([a-z]+)", text))
