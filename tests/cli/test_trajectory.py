"""The command: exit codes, one JSON object, a run folder with records, parquet and page."""

import json
from importlib.resources import as_file, files

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from orderone.cli import run
from orderone.cli.trajectory_page import sections
from orderone.core.record import read_records
from orderone.trajectory.geometry import Neighbours
from orderone.trajectory.growth import growth
from orderone.trajectory.one_pass import Pass
from orderone.trajectory.points import from_norms
from orderone.trajectory.told import Trajectory

KINDS = {"norm", "cosine_next", "step_norm", "alignment"}
ENDS = {f"{what}_to_{end}" for what in ("distance", "cosine") for end in ("first", "last")}


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
    assert set(frame["name"]) == KINDS | ENDS
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
    [
        [],
        ["x", "--points", "y"],
        ["missing-folder"],
        ["--points", "missing.csv"],
        ["--points", "points.csv", "--include", "a"],
        ["--points", "points.csv", "--schedule", "rates.csv"],
        ["--points", "points.csv", "--schedule", "late.csv"],
        ["--points", "points.csv", "--schedule", "half.csv"],
        ["--points", "points.csv", "--schedule", "twice.csv"],
        ["--points", "points.csv", "--schedule", "."],
        ["--points", "points.csv", "--from", "2"],
        ["--points", "points.csv", "--from", "nan"],
        ["--points", "."],
        [""],
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "points.csv").write_text("step,norm_a\n0,1\n1,2\n")
    (tmp_path / "rates.csv").write_text("step,rate\n,0.1\n")
    (tmp_path / "late.csv").write_text("step,rate\n1,0.1\n")
    (tmp_path / "half.csv").write_text("step,rate\n0.5,0.1\n0,0.1\n")
    (tmp_path / "twice.csv").write_text("step,rate\n0,0.1\n0,0.2\n")
    assert run(["trajectory", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "taken"],
        ["--to", "/dev/null/inside"],
        ["--from", "71"],
        ["--resume", "missing/state"],
        ["--schedule", "late.csv"],
    ],
)
def test_what_cannot_be_done_is_told_before_hours_of_reading(tmp_path, capsys, words, monkeypatch):
    folder = series(tmp_path / "series")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "late.csv").write_text("step,rate\n1,0.1\n")
    monkeypatch.setattr(Pass, "run", lambda *_: pytest.fail("it was read"))
    assert run(["trajectory", str(folder), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_pair_and_the_path_are_kept(tmp_path):
    folder = series(tmp_path / "series", count=5)
    assert run(["trajectory", str(folder), "--to", str(tmp_path / "run"), "--json"]) == 0
    thetas = [
        load_file(folder / f"checkpoint-{10 * i}" / "model.safetensors").popitem()[1].double()
        for i in range(5)
    ]
    pairs = pl.read_parquet(tmp_path / "run" / "pairs.parquet").filter(group="total")
    assert len(pairs) == 10
    for row in pairs.iter_rows(named=True):
        a, b = thetas[row["step"] // 10], thetas[row["later"] // 10]
        assert row["distance"] == pytest.approx(float((b - a).norm()), rel=1e-9)
        cosine = float((a * b).sum() / a.norm() / b.norm())
        assert 1 - row["one_minus_cosine"] == pytest.approx(cosine, rel=1e-12)
        aligned = float((a * (b - a)).sum() / a.norm() / (b - a).norm())
        assert row["alignment"] == pytest.approx(aligned, rel=1e-9)
    path = pl.read_parquet(tmp_path / "run" / "path.parquet")
    assert path["step"].to_list() == [0, 10, 20, 30, 40]


def test_a_series_of_orderone_train_is_read_without_options(tmp_path, capsys):
    """What our own run leaves, best weights, optimizer and generators included."""
    (tmp_path / "text.txt").write_text("a cat sat on the mat and the dog sat too\n" * 60)
    (tmp_path / "c.toml").write_text(
        f"""
steps = 24
batch_size = 4
checkpoint_every = 3
evaluate_every = 6
keep = 8
optimizer = {{ lr = 0.3 }}
[model]
kind = "language"
n = 16
H = 2
encoders = 2
[data]
corpus = "{tmp_path / "text.txt"}"
tokenizer = "words"
T = 8
"""
    )
    run_folder = tmp_path / "run"
    assert run(["train", str(tmp_path / "c.toml"), "--to", str(run_folder), "--json"]) == 0
    capsys.readouterr()
    assert run(["trajectory", str(run_folder), "--to", str(tmp_path / "told"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == list(range(3, 25, 3))
    last = load_file(run_folder / "checkpoints" / "step00000024" / "model.safetensors")
    square = sum(float(each.double().square().sum()) for each in last.values())
    assert told["groups"]["everything"]["norm"][-1] == pytest.approx(square**0.5, rel=1e-6)
    assert {"layer.0", "layer.1", "role.embedding", "role.query"} <= set(told["groups"])


def test_a_series_of_transformers_trainer_is_read_without_options(tmp_path, capsys):
    pytest.importorskip("accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    )
    words = torch.randint(50, (16, 8), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=8,
        per_device_train_batch_size=2,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    data = [{"input_ids": each, "labels": each} for each in words]
    Trainer(model=model, args=arguments, train_dataset=data).train()
    capsys.readouterr()
    words = ["trajectory", str(tmp_path / "run"), "--to", str(tmp_path / "told"), "--json"]
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [2, 4, 6, 8]
    square = sum(float(each.detach().double().square().sum()) for each in model.parameters())
    assert told["groups"]["everything"]["norm"][-1] == pytest.approx(square**0.5, rel=1e-6)


def test_distances_and_angles_to_both_ends(tmp_path, capsys):
    folder = series(tmp_path / "series", count=5)
    to = tmp_path / "run"
    assert run(["trajectory", str(folder), "--to", str(to), "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["groups"]["total"]
    thetas = [
        load_file(folder / f"checkpoint-{10 * i}" / "model.safetensors")[
            "layers.0.mlp.up_proj.weight"
        ].double()
        for i in range(5)
    ]
    for end, other in (("first", thetas[0]), ("last", thetas[-1])):
        distances = [float((theta - other).norm()) for theta in thetas]
        assert total[f"distance_to_{end}"] == pytest.approx(distances, rel=1e-6)
        cosines = [float((theta * other).sum() / theta.norm() / other.norm()) for theta in thetas]
        assert total[f"cosine_to_{end}"] == pytest.approx(cosines, rel=1e-9)
    records = read_records(to / "records.jsonl").filter(pl.col("group") == "total")
    kept = records.filter(pl.col("name") == "distance_to_last")["value"].to_list()
    assert kept == total["distance_to_last"]


def test_the_page_draws_the_law_from_where_it_holds():
    steps = np.arange(40) * 100.0
    norm = np.where(steps < 500, 9.0, np.sqrt(steps / 10))
    missing = np.full(39, np.nan)
    group = Neighbours(norm=norm, step_norm=missing, alignment=missing, one_minus_cosine=missing)
    result = Trajectory(
        steps=tuple(int(step) for step in steps),
        names=tuple(map(str, steps)),
        groups={"total": group},
        pairs={},
        laws={"total": growth(steps, norm, 500)},
        dynamics={},
    )
    (drawn,) = [each for each in sections(result) if each.heading == "Growth"]
    rows = drawn.chart.to_dict()["datasets"].popitem()[1]
    assert [row["law"] for row in rows[:5]] == [None] * 5
    assert [row["law"] for row in rows[5:]] == pytest.approx(list(norm[5:]), rel=1e-6)


def test_a_group_has_one_colour_in_every_chart():
    """Biases that do not move have no angle, and no one else takes their colour."""
    steps, missing = np.arange(8), np.full(7, np.nan)
    still = Neighbours(
        norm=np.ones(8), step_norm=np.zeros(7), alignment=missing, one_minus_cosine=missing
    )
    moving = from_norms(np.sqrt(1.0 + steps), np.full(8, 0.9)[1:])
    groups = {"total": moving, "gains": still, "biases": moving}
    result = Trajectory(
        steps=tuple(int(step) for step in steps),
        names=tuple(map(str, steps)),
        groups=groups,
        pairs={},
        laws={name: growth(steps * 1.0, each.norm) for name, each in groups.items()},
        dynamics={},
    )
    for each in sections(result):
        if each.chart is not None:
            rows = each.chart.to_dict()["datasets"].popitem()[1]
            assert list(dict.fromkeys(row["group"] for row in rows)) == list(groups), each.heading


def test_t5s_encoder_grows_as_the_root_of_steps(tmp_path, capsys):
    """[MRGSS21] Fig. 1 and Fig. 5, from the published points."""
    with as_file(files("orderone.experiments") / "data" / "t5_series.csv") as path:
        words = ["trajectory", "--points", str(path), "--from", "20000"]
        assert run([*words, "--to", str(tmp_path / "run"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    laws = told["laws"]["encoder"]
    assert laws["best"] == "sqrt"
    assert laws["sqrt"]["r2"] >= 0.9999
    assert laws["power"]["p"] == pytest.approx(0.50, abs=0.01)
    encoder = told["groups"]["encoder"]
    norm, step, along = (encoder[name] for name in ("norm", "step_norm", "alignment"))
    for before, after, size, cosine in zip(norm, norm[1:], step, along, strict=False):
        assert after**2 - before**2 == pytest.approx(2 * cosine * before * size + size**2)
    assert 0.15 < max(along) < 0.2
    assert along[-1] < 0.03
    assert 0.3 < told["dynamics"]["encoder"]["alignment_share"]["1"] < 0.45
    assert "Laws by layer" in (tmp_path / "run" / "report.html").read_text()
