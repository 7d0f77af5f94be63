"""The command: exit codes, one JSON object, a run folder with records, parquet and page."""

import json

import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from orderone.cli import run
from orderone.core.record import read_records

KINDS = {"norm", "cosine_next", "step_norm", "alignment"}


def series(folder, count=8, spoil=None):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(64, 64, generator=generator)
    for i in range(count):
        (folder / f"checkpoint-{i * 10}").mkdir(parents=True)
        saved = {"layers.0.mlp.up_proj.weight": theta.clone()}
        if i == spoil:
            saved["layers.0.mlp.up_proj.weight"][1, 2] = float("inf")
        save_file(saved, folder / f"checkpoint-{i * 10}" / "model.safetensors")
        theta = theta + 0.1 * torch.randn(64, 64, generator=generator)
    return folder


def test_a_series_is_told_as_json(tmp_path, capsys):
    folder = series(tmp_path / "series")
    to = tmp_path / "run"
    assert run(["trajectory", str(folder), "--to", str(to), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [10 * i for i in range(8)]
    assert told["groups"]["total"].keys() >= KINDS
    assert told["findings"] == []
    laws = told["laws"]["total"]
    assert laws["best"] in laws
    assert 0.9 < laws["sqrt"]["r2"] <= 1
    page = (to / "report.html").read_text()
    assert "Path" in page
    assert page.count("<svg") >= 5
    frame = pl.read_parquet(to / "trajectory.parquet")
    assert set(frame["name"]) == KINDS
    assert len(read_records(to / "records.jsonl")) == len(frame)


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
def test_something_wrong_exits_with_1(tmp_path, capsys, pairs):
    folder = series(tmp_path / "series", spoil=3)
    words = ["trajectory", str(folder), "--pairs", pairs, "--to", str(tmp_path / "run"), "--json"]
    assert run(words) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(f["checkpoint"], f["kind"]) for f in told["findings"]] == [
        ("checkpoint-30", "non-finite")
    ]


def test_a_table_of_points(tmp_path, capsys):
    steps = list(range(0, 40_000, 1000))
    norms = [(100 + step) ** 0.5 for step in steps]
    frame = pl.DataFrame({"step": steps, "norm_a": norms, "cosine_a": [0.99] * 40})
    frame.write_csv(tmp_path / "points.csv")
    words = ["trajectory", "--points", str(tmp_path / "points.csv"), "--from", "2000"]
    assert run([*words, "--to", str(tmp_path / "run")]) == 0
    assert "√t from step 2,000 on" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [[], ["x", "--points", "y"], ["missing-folder"], ["--points", "missing.csv"]],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["trajectory", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
