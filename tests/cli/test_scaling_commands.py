"""orderone plan, check and transfer: exit codes, one JSON object, one line of complaint."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orderone.cli import run
from orderone.core.run import RunFolder
from orderone.scaling.plan import Plan

FACTORY = """
from orderone.models import LanguageConfig, build

def make(width=32):
    config = LanguageConfig(
        n=width, H=max(1, width // 16), encoders=1, T=8, n_vocab=280, head_tied=False
    )
    return build(config)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders go to the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factory_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:make"


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The one JSON object on standard output; JSON's non-standard NaN is refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_plan_prints_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "preset:vit-b16", "--json"]) == 0
    found = printed(capsys)
    keys = {"parameters", "width", "strategy", "s", "output_multiplier", "rows"}
    assert set(found) == keys
    assert (found["parameters"], found["width"]) == (86_444_008, 768)
    row = {each["name"]: each for each in found["rows"]}["blocks.0.path.Q.weight"]
    assert row["lr_factor"] == pytest.approx(768**-1.5)
    assert row["lr_factor"] * row["decay_factor"] == pytest.approx(1.0)


def test_plan_of_billions_relative_and_with_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """R2C2 has no memory here to run out of; at another width its groups follow."""
    words = ["plan", "preset:r2c2", "--s", "0.5", "--lr", "9.3", "--weight-decay", "0.001"]
    assert run([*words, "--json"]) == 0
    found = printed(capsys)
    assert found["parameters"] == 2_688_739_328
    assert sum(len(group["names"]) for group in found["groups"]) == len(found["rows"])
    for group in found["groups"]:
        decayed = group["lr"] * group["weight_decay"]
        assert decayed == 0 or decayed == pytest.approx(9.3 * 0.001)
    assert run(words) == 0
    assert "group: lr" in capsys.readouterr().out


def test_plan_leaves_a_page_and_a_plan_that_reads_back(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(["plan", factory, "--s", "0.3", "--lr", "2", "--to", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"Page: {folder / 'report.html'}\n")
    read = Plan.from_json((folder / "plan.json").read_text())
    assert (read.s, read.width) == (0.3, 32)
    kept = RunFolder.open(folder)
    assert kept.config["s"] == 0.3
    factors = kept.records().filter(name="lr_factor")
    assert dict(factors.select("parameter", "value").iter_rows()) == {
        row.name: row.lr_factor for row in read.rows
    }
    page = (folder / "report.html").read_text()
    assert all(row.name in page for row in read.rows)
    assert "Groups of the optimizer" in page


def test_plan_relative_to_a_base_width(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", factory, "--width", "64", "--base-width", "32", "--strategy", "maximal-update"]
    assert run([*words, "--json"]) == 0
    rows = {row["name"]: row for row in printed(capsys)["rows"]}
    assert rows["blocks.0.path.Q.weight"]["lr_factor"] == pytest.approx(0.5)
    assert rows["stem.word.weight"]["lr_factor"] == pytest.approx(1.0)


def test_check_holds_and_leaves_a_page(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["check", factory, "--widths", "32,64,128", "--steps", "1", "--seeds", "2"]
    assert run([*words, "--to", str(folder), "--json"]) == 0
    found = printed(capsys)
    assert set(found) == {"verdict", "lines"}
    assert found["verdict"] == "holds"
    assert {"what", "slope", "low", "high", "verdict"} == set(found["lines"][0])
    assert any(line["what"] == "output at initialisation" for line in found["lines"])
    kept = RunFolder.open(folder)
    assert kept.result is not None
    assert kept.result["summary"] == found
    assert {"s", "lr", "batch", "seeds", "strategy"} < set(kept.config)
    assert set(kept.records()["kind"].unique()) >= {"block", "map", "logits", "output", "gradient"}
    assert "<svg" in (folder / "report.html").read_text()
    assert (folder / "coordinates.svg").stat().st_size > 1000


def test_check_of_growth_exits_with_one(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", factory, "--widths", "32,64,128", "--steps", "1", "--seeds", "2"]
    assert run([*words, "--strategy", "standard"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("Does not hold: under standard")
    page = re.search(r"Page: (.*)", said.out)
    assert page is not None
    assert Path(page[1]).exists()


def test_transfer_prints_and_leaves_a_page(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join("the cat sat on the mat and the dog did not" for _ in range(300)))
    words = ["transfer", factory, "--widths", "16,32", "--lrs", "0.01,0.3,3", "--steps", "8"]
    words += ["--seeds", "2", "--batch", "2", "--text", str(text), "--to", str(tmp_path / "run")]
    code = run([*words, "--json"])
    found = printed(capsys)
    assert code == (1 if found["verdict"] == "does not hold" else 0)
    assert set(found) == {"verdict", "shift", "low", "high", "optima", "losses"}
    assert [each["width"] for each in found["optima"]] == [16, 32]
    assert len(found["losses"]) == 2 * 3 * 2
    assert len(RunFolder.open(tmp_path / "run").records()) == 12
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plan", "nothing"], "model 'nothing'"),
        (["plan", "preset:vit-b16", "--strategy", "best"], "strategy 'best'"),
        (["plan", "preset:vit-b16", "--s", "2"], "s = 2"),
        (["plan", "preset:vit-b16", "--width", "100"], "width 100 with 12 heads"),
        (["plan", "preset:vit-b16", "--base-width", "-1"], "width"),
        (["plan", "preset:vit-b16", "--lr", "0"], "positive learning rate"),
        (["plan", "preset:vit-b16", "--weight-decay", "0.1"], "without --lr"),
        (["plan", "preset:vit-b16", "--constants", "none"], "none"),
        (["check", "preset:vit-b16", "--widths", "64;128"], "--widths 64;128"),
        (["check", "preset:vit-b16", "--widths", "64"], "at least two positive widths"),
        (["check", "preset:vit-b16", "--widths", "64,100"], "width 100"),
        (["check", "preset:vit-b16", "--steps", "0"], "0 steps"),
        (["transfer", "preset:vit-b16", "--engine", "spark"], "--engine spark"),
        (["transfer", "preset:vit-b16", "--lrs", "fast"], "--lrs fast"),
        (["transfer", "preset:vit-b16", "--lrs", "1,2"], "at least 3 positive rates"),
        (["transfer", "preset:small-lm-post", "--text", "./no.txt"], "no.txt"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_two(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2  # without --json: a bar of progress must leave nothing, either
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert complaint in said.err
    assert not list(tmp_path.iterdir())  # no run folder of what never ran


@pytest.mark.parametrize("command", ["check", "transfer"])
def test_a_folder_that_is_taken_is_told_before_any_work(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the model is looked for, which is not there."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").touch()
    assert run([command, "nothing", "--to", "old"]) == 2
    assert "'old' exists and is not empty" in capsys.readouterr().err
