"""``orderone train`` and ``orderone tail`` from the outside."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from orderone.cli import run
from orderone.core.run import RunFolder
from orderone.data.images import images
from orderone.models.config import VisionConfig
from orderone.models.vision import VisionTransformer

CONFIG = """
seed = 1
steps = 6
batch_size = 4
evaluate_every = 3
checkpoint_every = 2
{top}
[model]
{model}
[data]
corpus = "{text}"
tokenizer = "words"
vocabulary = 20
T = 8
batches = "{batches}"
[optimizer]
lr = 0.3
{optimizer}
"""
OURS = 'kind = "language"\nn = 16\nH = 2\nencoders = 1\ndropout = 0.1'

RESTORING = 'kind = "encoder-decoder"\nn = 16\nH = 2\nencoders = 1\ndecoders = 1\ndropout = 0.1'
PAIRS = "vocabulary = 280\nT = 24"
SEEING = 'kind = "vision"\nn = 16\nH = 2\nencoders = 1\npatch = 4\ndropout = 0.1'
IMAGES = """
seed = 1
steps = 6
batch_size = 300
evaluate_every = 3
checkpoint_every = 2
optimizer = {{ lr = 0.3 }}
[model]
{model}
[images]
augmentation = "light"
{images}
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["the", "cat", "dog", "sat", "on", "a", "mat"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(rng.choices(words, k=9)) for _ in range(120)))
    return path


def written(text: Path, name: str = "c.toml", **changes: str) -> str:
    parts = {"top": "", "model": OURS, "batches": "packed", "optimizer": "", **changes}
    path = text.with_name(name)
    path.write_text(CONFIG.format(text=text, **parts))
    return str(path)


def spans(text: Path, **changes: str) -> str:
    """Spans to be restored, by byte pairs of that text."""
    path = Path(written(text, batches="spans", model=RESTORING, **changes))
    said = path.read_text().replace('tokenizer = "words"\nvocabulary = 20\nT = 8', PAIRS)
    path.write_text(said)
    return str(path)


def pictures(text: Path, model: str = SEEING, images: str = 'name = "digits"') -> str:
    """Digits to be told apart, shifted at random."""
    path = text.with_name("digits.toml")
    path.write_text(IMAGES.format(model=model, images=images))
    return str(path)


@pytest.mark.parametrize("batches", ["packed", "sentences", "spans", "images"])
def test_a_run_resumed_is_the_run(
    text: Path, batches: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if batches in ("spans", "images"):
        config = spans(text) if batches == "spans" else pictures(text)
    else:
        config = written(text, batches=batches)
    whole, cut = text.with_name("a"), text.with_name("b")
    assert run(["train", config, "--to", str(whole), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["run"] == str(whole)
    assert printed["steps"] == 6
    # What a kill right after the checkpoint of step 4 leaves.
    assert run(["train", config, "--to", str(cut), "--resume", "--json"]) == 0
    last = cut / "checkpoints" / "step00000006"
    (last / "model.safetensors").write_bytes(b"torn")
    (cut / "result.json").unlink()
    capsys.readouterr()
    assert run(["train", config, "--to", str(cut), "--resume", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["resumed_from"] == 4
    assert "model.safetensors" in err
    weights = [load_file(at / "checkpoints/step00000006/model.safetensors") for at in (whole, cut)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    records = [(at / "records.jsonl").read_bytes() for at in (whole, cut)]
    assert records[0] == records[1]


def test_images_are_told_apart(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded accuracy and loss are those of the weights that were kept, counted apart."""
    to = text.with_name("run")
    assert run(["train", pictures(text), "--to", str(to), "--json"]) == 0
    model = VisionTransformer(
        VisionConfig(n=16, H=2, encoders=1, patch=4, image_size=8, channels=1, n_out=10)
    )
    model.load_state_dict(load_file(to / "checkpoints/step00000006/model.safetensors"))
    digits = images("digits")
    held_out = digits.validation.take(torch.arange(len(digits.validation)))
    logits = model.eval()((held_out - digits.mean[0]) / digits.std[0]).detach()
    records = RunFolder.open(to).records().filter(split="validation", step=6)
    found = dict(records.select("name", "value").iter_rows())
    right = (logits.argmax(1) == digits.validation.labels).double().mean().item()
    assert found["accuracy"] == pytest.approx(right)
    loss = torch.nn.functional.cross_entropy(logits, digits.validation.labels)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    capsys.readouterr()
    assert run(["train", pictures(text), "--to", str(text.with_name("other"))]) == 0
    assert "nats an image" in capsys.readouterr().out


def test_spans_are_restored(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = text.with_name("run")
    config = spans(text, top='plan = { constants = "language-word", multiplier_in_fans = false }')
    assert run(["train", config, "--to", str(to), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 6 * 4 * 24
    losses = RunFolder.open(to).records().filter(split="validation")["value"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("model", "images", "said"),
    [
        (OURS, 'name = "digits"', "a vision model"),
        (SEEING, 'name = "digits"\nsize = 9', "divisible by patch"),
        (SEEING + "\nn_out = 9", 'name = "digits"', "the data's 10 classes and 1×8×8"),
        (SEEING + '\nhead = "per-token"', 'name = "digits"', "per-token"),
        (SEEING, 'name = "digits"\nsizes = 9', "one of name, folder, size, augmentation"),
        (SEEING, 'name = "digits"\n[data]\nT = 9', "both [data] and [images]"),
    ],
)
def test_images_of_another_kind_are_one_line(
    text: Path, model: str, images: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pictures(text, model, images)
    assert run(["train", config, "--to", str(text.with_name("run"))]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (OURS, "an encoder–decoder"),
        (RESTORING + "\npad = 2", "pad = 2"),
        (RESTORING + "\nT = 9", "room for the data's"),
    ],
)
def test_spans_of_another_kind_are_one_line(
    text: Path, model: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = Path(spans(text))
    name.write_text(name.read_text().replace(RESTORING, model))
    assert run(["train", str(name), "--to", str(text.with_name("run"))]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert run(["train", written(text, batches="spans", model=RESTORING), "--to", "x"]) == 2
    assert "byte pairs, which have a [MASK]" in capsys.readouterr().err


def test_a_model_of_transformers_learns(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = text.with_name("llama")
    folder.mkdir()
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 24,
        "max_position_embeddings": 16,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    config = written(text, model=f'name = "{folder}"', top="compile = false\nclip = 1.0")
    to = text.with_name("run")
    assert run(["train", config, "--to", str(to), "--json"]) == 0
    losses = RunFolder.open(to).records().filter(split="validation")["value"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top": "stepz = 3"}, "unknown setting 'stepz'"),
        ({"top": 'clip = "much"'}, "clip = 'much'"),
        ({"optimizer": "momentum = 0.9"}, "unknown setting 'optimizer.momentum'"),
        ({"optimizer": 'name = "Lion"'}, "optimizer.name = 'Lion'"),
        ({"optimizer": "settings = { betas = [0.9] }"}, "expected 2 numbers"),
        ({"optimizer": "settings = { betas = [0.9, 2.0] }"}, "AdamW refuses its settings"),
        ({"top": 'spikes = { action = "roll-back" }'}, "keep = 2 checkpoints every 2 steps"),
        ({"model": 'kind = "language"\nn = 15\nH = 2\nencoders = 1'}, "n divisible by H"),
        ({"model": OURS + "\nM = 0.01"}, "whole number"),
        ({"model": OURS + "\nwidth = 3"}, "unknown setting 'width'"),
        ({"model": OURS + "\nT = 4"}, "room for the data's"),
        ({"model": OURS + "\nn_out = 9\nhead_tied = false"}, "each of the data's 11 words"),
        ({"model": 'kind = ["language"]\nn = 16'}, "kind = ['language'] of model"),
        # More bytes than there are addresses: no machine even tries.
        ({"model": OURS.replace("16", "2147483646") + "\nT = 2147483647"}, "not enough memory"),
        ({"model": 'name = "preset:vit-b16"'}, "causal language model"),
        ({"model": 'name = "preset:none"'}, "preset 'none'"),
        ({"model": "n = 16"}, "either name"),
        ({"top": "micro_batch = 3"}, "micro_batch = 3"),
        ({"top": 'precision = "float16"\nparallel = "fsdp"'}, "'float16' with parallel"),
    ],
)
def test_a_bad_configuration_is_one_line(
    text: Path, changes: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    to = text.with_name("run")
    assert run(["train", written(text, **changes), "--to", str(to)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert not to.exists()


def test_another_model_or_text_is_refused(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = text.with_name("run")
    assert run(["train", written(text), "--to", str(to), "--json"]) == 0
    wider = written(text, "wide.toml", model=OURS.replace("16", "32"))
    capsys.readouterr()
    assert run(["train", wider, "--to", str(to), "--resume"]) == 2
    err = capsys.readouterr().err
    assert "model.n = 16, now 32" in err
    assert err.count("\n") == 1
    text.write_text(text.read_text()[::-1])
    assert run(["train", written(text), "--to", str(to), "--resume"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("orderone: ")


def test_a_run_that_ended_goes_on_to_the_same_end(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = text.with_name("run")
    assert run(["train", written(text), "--to", str(to)]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert "nats a token" in said
    assert run(["train", written(text), "--to", str(to), "--resume"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == said


def test_lost_numbers_end_the_run_and_are_told(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, the checkpoint that stays, and an end that whoever follows the run sees."""
    to = text.with_name("run")
    config = Path(written(text, optimizer="weight_decay = 0.0", top="clip = 1.0"))
    assert run(["train", str(config), "--to", str(to), "--json"]) == 0
    last = to / "checkpoints" / "step00000006"
    for path in (last, to / "checkpoints" / "step00000004"):
        weights = load_file(path / "model.safetensors")
        spoiled = {name: each * float("nan") for name, each in weights.items()}
        save_file(spoiled, path / "model.safetensors")
        manifest = json.loads((path / "manifest.json").read_text())
        written_now = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        manifest["files"]["model.safetensors"] = written_now
        (path / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(last)
    capsys.readouterr()
    assert run(["train", str(config), "--to", str(to), "--resume"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("orderone: the loss is nan at step 5")
    assert "the checkpoint of step 4 stays" in err
    assert run(["tail", str(to)]) == 0  # it has ended: no waiting
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: {to}"


TRACED = """
import sys
from torch import nn
from orderone.cli import run
compiles = nn.Module.compile
def traced(model):
    sys.stderr.write("traced")
    compiles(model, backend="eager")
nn.Module.compile = traced
sys.exit(run(sys.argv[1:]))
"""
"""``orderone`` with models that are traced, but not handed to a C++ compiler."""


def test_a_compiled_run_is_the_run(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``compile = true`` traces the model, and nothing of it shows in what the run leaves."""
    plain, compiled = text.with_name("a"), text.with_name("b")
    still = OURS.replace("dropout = 0.1", "dropout = 0.0")
    assert run(["train", written(text, model=still), "--to", str(plain), "--json"]) == 0
    config = written(text, model=still, top="compile = true")
    # In a process of its own: the shape checks of the tests cannot be traced.
    words = ["train", config, "--to", str(compiled), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", TRACED, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "traced")
    records = [RunFolder.open(at).records() for at in (plain, compiled)]
    assert records[1].drop("value").equals(records[0].drop("value"))
    assert records[1]["value"].to_list() == pytest.approx(records[0]["value"].to_list(), rel=1e-5)
    names = [
        load_file(at / "checkpoints/step00000006/model.safetensors").keys()
        for at in (plain, compiled)
    ]
    assert names[0] == names[1]


def test_two_processes_need_a_kind_of_parallelism(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["train", written(text), "--to", str(text.with_name("run"))]) == 2
    assert "2 processes with parallel = 'none'" in capsys.readouterr().err


def test_tail_shows_the_last_of_every_quantity(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = text.with_name("run")
    assert run(["train", written(text), "--to", str(to), "--json"]) == 0
    capsys.readouterr()
    assert run(["tail", str(to), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "done"
    losses = RunFolder.open(to).records().filter(name="loss")
    expected = {split: losses.filter(split=split)["value"][-1] for split in ("train", "validation")}
    shown = {row["split"]: row["value"] for row in found["latest"] if row["name"] == "loss"}
    assert shown == expected
    assert run(["tail", str(to)]) == 0  # it has ended: no waiting
    out = capsys.readouterr().out
    assert "loss split=validation" in out
    assert f"{expected['validation']:.4g}" in out
    assert run(["tail", str(to.with_name("absent"))]) == 2
