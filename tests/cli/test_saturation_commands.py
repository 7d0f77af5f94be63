"""orderone saturation and heads: what they print, keep and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from orderone.cli import run
from orderone.core.run import RunFolder

SENTENCES = [
    "the cat sat on the mat and the dog did not",
    "a longer sentence of many more words follows here for the sake of padding",
    "no model has ever read these four lines before today",
    "of the dog and the cat one alone sat on the other",
]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT with weights and a word-level tokenizer, as transformers saves them."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({w for s in SENTENCES for w in s.split()})]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=9,
    )
    path = tmp_path / "bert"
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(path)
    made.save(str(path / "tokenizer.json"))
    return path


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_saturation_prints_the_contract_and_leaves_a_page(
    folder: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["saturation", str(folder), "--text", text, "--seeds", "2", "--exact"]
    assert run([*words, "--json", "--to", str(tmp_path / "run")]) == 0
    found = printed(capsys)
    assert set(found) == {"layers", "agreement", "collapsed", "sentences"}
    assert found["sentences"] == 4
    assert [each["layer"] for each in found["layers"]] == ["0", "1", "2"]
    level = {"cosine", "se", "other", "cross", "centred"}
    for each in found["layers"]:
        assert set(each) == {"layer", "random", "exact"} | level
        assert set(each["random"]) == level
        assert each["exact"] == pytest.approx(each["cosine"], abs=0.05)
    kept = RunFolder.open(tmp_path / "run")
    assert kept.result is not None
    assert kept.result["summary"] == found
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    assert set(kept.records()["network"].unique()) == {"model", "random", "exact"}


def test_the_terminal_says_it_in_words(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["saturation", str(folder), "--text", text, "--seeds", "1", "--tokens"]
    assert run([*words, "--stack-only"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        *("layer", "cosine", "se", "other", "cross", "centred", "random"),
        *("random", "se"),
    ]
    assert "'the': " in out
    assert "random initialisation" in out
    assert "Page: runs" in out


def test_heads_prints_the_contract_and_leaves_maps(
    folder: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["heads", str(folder), "--text", text, "--json", "--to", str(tmp_path / "h")]) == 0
    found = printed(capsys)["heads"]
    assert [(each["layer"], each["head"]) for each in found] == [
        (layer, head) for layer in ("0", "1") for head in (0, 1)
    ]
    assert set(found[0]) == {
        *("layer", "head", "saturated_positions", "single", "whole_prefix", "entropy"),
        *("effective_positions", "kind"),
    }
    # Nine positions at most, two of them special.
    assert all(1 <= each["saturated_positions"] <= 9 for each in found)
    page = (tmp_path / "h" / "report.html").read_text()
    assert page.count("<figure>") == 3
    assert run(["heads", str(folder), "--text", text]) == 0
    assert "heads: " in capsys.readouterr().out


def test_sentences_of_one_token_leave_no_choice_and_still_a_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, to = tmp_path / "words.txt", tmp_path / "h"
    text.write_text("cat\ndog")
    words = [str(folder / "config.json"), "--text", str(text), "--longest", "1", "--to", str(to)]
    assert run(["heads", *words, "--json"]) == 0
    found = printed(capsys)["heads"]
    assert {each["kind"] for each in found} == {"one position"}
    assert all(each["single"] is None for each in found)
    assert "<svg" in (to / "report.html").read_text()


def test_a_model_without_weights_is_read_with_the_texts_own_words(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["saturation", str(folder / "config.json"), "--text", text, "--json"]) == 0
    found = printed(capsys)
    assert all(each["random"] is None for each in found["layers"])
    assert run(["saturation", str(folder / "config.json"), "--text", text]) == 0
    assert "weights are random" in capsys.readouterr().out


def damaged(folder: Path, how: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    if how == "nan":
        tensors = load_file(weights)
        tensors["bert.encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
        save_file(tensors, weights, metadata={"format": "pt"})
    elif how == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif how == "missing":
        tensors = load_file(weights)
        del tensors["bert.encoder.layer.0.output.dense.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
    elif how == "vocabulary":
        found = json.loads((folder / "tokenizer.json").read_text())
        found["model"]["vocab"] |= {f"new{i}": 1000 + i for i in range(9)}
        (folder / "tokenizer.json").write_text(json.dumps(found))
    elif how == "tokenizer":
        (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "NaN or infinite"),
        ("no tokenizer", "no tokenizer in"),
        ("missing", "1 weights that"),
        ("vocabulary", "a tokenizer of 1009 tokens"),
        ("tokenizer", "is no tokenizer"),
    ],
)
@pytest.mark.parametrize("command", ["saturation", "heads"])
def test_a_damaged_folder_is_one_line(
    folder: Path, text: str, command: str, how: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged(folder, how)
    assert run([command, str(folder), "--text", text]) == 2
    caught = capsys.readouterr()
    assert said in caught.err.splitlines()[-1]
    assert "Traceback" not in caught.err


def test_other_bad_input_is_one_line(
    folder: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n  \n")
    cases = [
        (["saturation", str(folder), "--text", str(empty)], "no text in"),
        (["saturation", str(folder), "--text", str(tmp_path / "none.txt")], "nothing at"),
        (["saturation", str(folder), "--text", text, "--c", "0"], "positive number"),
        (["saturation", str(folder), "--text", text, "--sentences", "0"], "at least one"),
        (["heads", "preset:vit-b16", "--text", text], "without a word embedding"),
        (["heads", str(folder), "--text", text, "--as-coded"], "mask is true"),
    ]
    for words, said in cases:
        assert run(words) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert said in lines[-1], words
