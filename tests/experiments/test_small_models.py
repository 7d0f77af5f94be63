"""Small language models are trained once, scored a word at a time, and read back as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.nn import functional

from orderone.core.errors import DataError
from orderone.core.run import RunFolder
from orderone.experiments import small_models
from orderone.experiments.reproduction import Stage
from orderone.experiments.small_models import Scores, small_model, trained
from orderone.experiments.small_text import batches, by_length, shuffled
from orderone.experiments.small_training import next_word
from orderone.trajectory.series import trajectory

from .tiny import TINY, stage_in


@pytest.fixture
def stage(tmp_path: Path):
    with stage_in(tmp_path) as made:
        yield made


def test_a_model_learns_and_is_trained_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(stage, TINY)
    assert first.losses[first.best_step] == min(list(first.losses.values())[1:])
    assert first.losses[first.best_step] < first.losses[0]
    assert first.steps == 8
    monkeypatch.setattr(small_models, "train", None)
    other = replace(stage, run=RunFolder(stage.run.path.parent / "another"))
    again = trained(other, TINY)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_decides_a_training_decides_its_folder(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b c")
    given = replace(stage, data=tmp_path)
    wikitext = replace(TINY, corpus="wikitext-2")
    others = [
        (stage, replace(TINY, weight_decay=0.0)),
        (replace(stage, seed=1), TINY),
        (stage, wikitext),
        (given, wikitext),
    ]
    folders = {small_models.task_of(*each).folder for each in [(stage, TINY), *others]}
    assert len(folders) == 1 + len(others)
    assert small_models.task_of(given, TINY) == small_models.task_of(stage, TINY)
    assert not any((folder / small_models.SUMMARY).exists() for folder in folders)


def test_text_that_is_missing_is_told_before_processes_begin(stage: Stage) -> None:
    several = replace(stage, scale="laptop", processes=2)
    with pytest.raises(DataError, match="'wikitext-2' without a folder"):
        trained(several, replace(TINY, corpus="wikitext-2"))


def test_series_is_of_the_watched_encoder(stage: Stage) -> None:
    found = trained(stage, TINY)
    read = trajectory(found.series)
    steps, norms = found.values("norm")
    assert list(read.steps) == [0, 2, 4, 6, 8]
    assert list(steps) == list(range(9))
    assert read.groups["total"].norm == pytest.approx(norms[::2], rel=1e-6)
    assert {"matrices", "gains", "biases"} <= set(read.groups)


def test_scores_agree_with_sentences_one_at_a_time(stage: Stage) -> None:
    found = trained(stage, TINY)
    test = found.text.test
    rows = by_length(test)
    for row, nats in zip(rows, found.test.nats, strict=True):
        length = int(test.lengths[row])
        tokens = torch.from_numpy(test.tokens[row, :length]).long()
        with torch.no_grad():
            logits = found.model(tokens[None, :-1])[0]
        expected = functional.cross_entropy(logits, tokens[1:], reduction="sum")
        assert float(nats) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("mask", "harmless"), [("causal", True), ("zero", False)])
def test_padding_is_a_word_where_the_mask_leaks(
    stage: Stage, mask: Literal["causal", "zero"], harmless: bool
) -> None:
    model = trained(stage, replace(TINY, mask=mask)).model
    split = TINY.text(None).test
    rows = by_length(split)[:4]
    (padded,) = batches(split, rows, size=4, padded=True)
    (cut,) = batches(split, rows, size=4, padded=False)
    losses = [next_word(model, each).item() for each in (padded, cut)]
    assert (losses[0] == pytest.approx(losses[1], rel=1e-6)) is harmless


def test_every_sentence_once_an_epoch() -> None:
    split = TINY.text(None).train
    seen = [batch.targets for batch in shuffled(split, size=16, padded=False, seed=1, epochs=1)]
    words = torch.cat(seen)
    expected = [split.tokens[i, 1 : split.lengths[i]] for i in range(len(split))]
    assert len(words) == split.words
    assert sorted(words.tolist()) == sorted(int(w) for row in expected for w in row)


def test_two_perplexities() -> None:
    """By hand: sentences of 1 and 3 words, at 1 and 2 nats a word."""
    found = Scores(nats=torch.tensor([1.0, 6.0]), words=torch.tensor([1.0, 3.0]), right=2)
    assert found.perplexity == pytest.approx(2.718281828 ** (7 / 4))
    assert found.perplexity_as_coded == pytest.approx((2 + 4) / 2)
    assert found.accuracy == 0.5


def test_paper_size_is_the_papers(stage: Stage) -> None:
    """12 layers, d 768, d_ff 512: gains are half of the encoder's norm² at initialisation."""
    chosen = small_model(replace(stage, scale="paper"))
    matrices = 12 * (4 * 768**2 / (3 * 768) + 512 / 3 + 768 / 3)
    gains = 24 * 768
    assert (chosen.layers, chosen.n, chosen.d_ff, chosen.batch, chosen.epochs) == (
        12,
        768,
        512,
        16,
        5,
    )
    assert gains / (gains + matrices) == pytest.approx(0.5, abs=0.02)
