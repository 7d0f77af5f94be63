"""Reports of run folders: what is said of them, what is gathered, how they are compared."""

from __future__ import annotations

import json
import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from orderone.cli import run
from orderone.core.record import Record
from orderone.core.run import RunFolder
from orderone.report.again import toml
from orderone.report.courses import POINTS, gathered
from orderone.report.page import Found, page
from orderone.report.runs import report
from tests.report.run_folders import training, verdict


def texts(made, name):
    return [s.text if isinstance(s, Found) else s for s in made.found[name]]


def headings(made):
    return [section.heading for section in made.sections]


@pytest.mark.parametrize("count", [POINTS, POINTS + 1, 10_007])
def test_gathered_points_keep_means_ends_and_counts(count):
    values = np.random.default_rng(0).normal(size=count)
    frame = pl.DataFrame({"step": range(5, 5 + count), "value": values, "series": "a"})
    points = gathered(frame, ["series"])
    assert len(points) <= POINTS
    assert points["records"].sum() == count
    assert points["lowest"].min() == values.min()
    assert points["highest"].max() == values.max()
    whole = float((points["value"] * points["records"]).sum()) / count
    assert whole == pytest.approx(values.mean(), abs=1e-12)
    edges = np.cumsum([0, *points["records"]])
    means = [values[a:b].mean() for a, b in pairwise(edges)]
    assert np.allclose(points["value"].to_numpy(), means, rtol=1e-12)


def test_a_short_series_is_drawn_as_it_is_beside_a_long_one():
    long = pl.DataFrame({"step": range(5000), "value": 1.0, "series": "long"})
    short = pl.DataFrame({"step": [3, 4999], "value": [7.0, 9.0], "series": "short"})
    points = gathered(pl.concat([long, short]), ["series"]).filter(series="short")
    assert points.select("step", "value", "records").rows() == [(3, 7.0, 1), (4999, 9.0, 1)]


def test_means_on_a_logarithmic_axis_are_of_logarithms():
    frame = pl.DataFrame({"step": range(1000), "value": [1e-4, 1.0] * 500, "series": "a"})
    assert gathered(frame, ["series"], log=True)["value"].max() <= 1.0
    middle = gathered(frame, ["series"], log=True)["value"].median()
    assert middle == pytest.approx(1e-2, rel=1.0)


def test_a_run_is_told_from_its_records(tmp_path):
    made = report([training(tmp_path / "a")])
    said = texts(made, "a")
    assert said[0].startswith("The loss (validation) went from 2.7 at step 5 to 2.55 at step 20")
    assert headings(made)[:3] == ["Result", "Loss", "Gradient before clipping"]
    assert "Spikes and shifts" in headings(made)


def test_verdicts_are_said_first(tmp_path):
    for held in (True, False, None):
        made = report([verdict(tmp_path / str(held), held=held)])
        first = made.found[str(held)][0]
        assert isinstance(first, Found)
        assert first.held is held


def test_an_unfinished_run_says_so(tmp_path):
    said = texts(report([training(tmp_path / "a", ends=False)]), "a")
    assert "has not ended" in said[0]
    assert "step 20" in said[0]


def test_a_torn_run_and_values_that_are_not_finite_are_told(tmp_path):
    path = training(tmp_path / "a", ends=False)
    with RunFolder.open(path).writer() as records:
        records.write(Record(21, "loss", float("nan"), {"split": "train"}))
    with (path / "records.jsonl").open("a") as file:
        file.write('{"step": 22, "na')
    said = " ".join(texts(report([path]), "a"))
    assert "1 of 46 values are not finite" in said
    assert "'loss' at step 21" in said
    assert "torn by a kill" in said


def test_several_runs_lie_over_one_another_and_their_settings_side_by_side(tmp_path):
    made = report([training(tmp_path / "a", lr=0.1), training(tmp_path / "b", lr=0.2)])
    table = next(s for s in made.sections if s.heading == "Where the configurations differ")
    assert [list(row) for row in table.rows] == [["configuration.optimizer.lr", "0.1", "0.2"]]
    assert table.text.split()[0] == str(len(made.sections[-2].rows) - 1)
    loss = next(s for s in made.sections if s.heading == "Loss")
    assert loss.chart is not None
    spec = loss.chart.to_dict()
    names = {row["run"] for rows in spec["datasets"].values() for row in rows if "split" not in row}
    assert names == {"a", "b"}
    assert "a: The loss (validation) went" in made.html()


def test_runs_of_one_name_are_told_apart(tmp_path):
    made = report([training(tmp_path / "x" / "a"), training(tmp_path / "y" / "a")])
    assert list(made.found) == ["x/a", "y/a"]


def test_settings_read_back_as_they_were():
    settings = {"a": 1, "b": True, "c": None, "d": [1.5, "x"], "e.f": {'g"\\': "h\n", "i": {}}}
    kept = {"a": 1, "b": True, "d": [1.5, "x"], "e.f": {'g"\\': "h\n", "i": {}}}
    assert tomllib.loads(toml(settings)) == kept


def test_the_command_leaves_page_figures_and_json(tmp_path, capsys):
    paths = [str(training(tmp_path / name)) for name in ("a", "b")]
    to, figures = tmp_path / "r", tmp_path / "figures"
    assert run(["report", *paths, "--to", str(to), "--figures", str(figures), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(to / "report.html")
    assert [row["records"] for row in told["runs"]] == [45, 45]
    kept = [Path(path) for path in told["figures"]]
    assert [path.suffix for path in kept] == [".pdf", ".svg"] * 2
    magic = {".pdf": b"%PDF", ".svg": b"<svg"}
    assert all(path.read_bytes().startswith(magic[path.suffix]) for path in kept)
    assert 1e5 < (to / "report.html").stat().st_size < 5e6


def damaged(folder):
    path = training(folder / "damaged")
    lines = (path / "records.jsonl").read_text().splitlines()
    lines[6] = '{"step": "seven"}'
    (path / "records.jsonl").write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (lambda folder: [folder / "nothing"], "no readable run.json"),
        (lambda folder: [folder], "expected a run folder"),
        (lambda folder: [damaged(folder)], "line 7 of"),
        (lambda folder: [training(folder / "a"), folder / "a"], "twice"),
        (lambda folder: [training(folder / "a"), "--strange"], "--strange"),
        (lambda folder: [training(folder / "a"), "--to", folder / "a"], "is not empty"),
        (
            lambda folder: [training(folder / "a"), "--figures", folder / "a" / "run.json"],
            "written",
        ),
        (lambda _folder: [], "Missing argument"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, says):
    assert run(["report", *map(str, words(tmp_path))]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert says in told


def test_what_is_too_much_for_a_page_is_left_to_its_table(tmp_path, monkeypatch):
    monkeypatch.setattr("orderone.report.runs.PICTURES", 1)
    made = report([training(tmp_path / "a")])
    assert [s.heading for s in made.sections if s.chart is not None] == ["Loss"]
    every = next(s for s in made.sections if s.heading == "Every quantity")
    assert every.text == "1 more quantities are not drawn."
    assert "gradient_norm_before_clipping" in {row[0] for row in every.rows}


def test_charts_beyond_a_page_s_size_are_pictures(tmp_path, monkeypatch):
    sections = report([training(tmp_path / "a")]).sections
    charts = [section for section in sections if section.chart is not None]
    monkeypatch.setattr("orderone.report.page.INTERACTIVE_BYTES", 20_000)
    html = page(title="t", found=[], sections=[*charts, *charts])
    assert html.count('tabindex="0"><svg') == 4
    assert 0 < html.count('<script type="application/json">') < 4
    monkeypatch.setattr("orderone.report.page.VECTOR_BYTES", 1000)
    assert page(title="t", found=[], sections=charts).count("data:image/png;base64,iVBOR") == 2
