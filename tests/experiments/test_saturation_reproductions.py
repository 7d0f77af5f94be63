"""Figures 2, 3 and 4 of the norm paper, small: what they measure, and that they can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from orderone.core.errors import DataError
from orderone.core.run import RunFolder
from orderone.experiments import pretrained
from orderone.experiments.pretrained import folders_of, random_with_dropout, sentences_of
from orderone.experiments.reproduction import Stage
from orderone.experiments.reproductions import (
    attended_positions,
    saturation_pretrained,
    saturation_small,
    scaling_curves,
)
from orderone.experiments.small_models import SmallModel, small_model, trained
from orderone.probes.heads import upper_mode
from orderone.probes.saturation import Level, Saturation, saturation
from tests.probes.outside import for_kind, outside, padded

TINY = {"layers": 1, "n": 16, "d_ff": 16, "sentences": 64, "vocabulary": 60, "checkpoints": 2}


@pytest.fixture
def stage(tmp_path: Path):
    run = RunFolder.create(tmp_path / "run", command="reproduce", config={}, seed=0)
    with run.writer() as records:
        yield Stage(
            scale="smoke", seed=0, run=run, records=records, progress=lambda done, total: None
        )


def kept(stage: Stage) -> pl.DataFrame:
    stage.records.flush()
    return stage.run.records()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of four steps."""

    def made(stage: Stage, **changes: Any) -> SmallModel:
        return replace(small_model(stage, **changes), **TINY)

    for module in (saturation_small, attended_positions, scaling_curves):
        monkeypatch.setattr(module, "small_model", made)


def test_both_masks_and_placements_are_trained_and_told_apart(stage: Stage, tiny: None) -> None:
    outcome = saturation_small.reproduce(stage)
    assert outcome.held is None  # four steps are no test of the claim
    assert outcome.as_coded is not None
    records = kept(stage)
    assert set(records["model"].unique()) == {"branch", "post", "branch as coded", "post as coded"}
    assert set(records["when"].drop_nulls().unique()) == {"random", "trained"}


def test_a_constant_network_is_not_saturated(stage: Stage) -> None:
    """The published 1.00 of post placement: every token the same."""
    model = trained(stage, replace(small_model(stage, placement="post"), **TINY))
    level = Level(
        layer="2", cosine=1.0, se=0.0, other=0.4, cross=0.4, centred=0.9, other_saturated=0.4
    )
    found = Saturation(
        c=1024.0,
        layers=(level,),
        random=(level,),
        agreement=1.0,
        chance=0.1,
        collapsed=False,
        sentences=9,
        tokens=99,
    )

    def of(saturation: Saturation) -> saturation_small._Found:
        return saturation_small._Found(model=model, saturation=saturation)

    assert of(found).full
    assert not of(replace(found, layers=(replace(level, cosine=0.94),))).full
    alike = replace(level, other=0.999)
    for constant in (replace(found, layers=(alike,)), replace(found, collapsed=True)):
        assert not of(constant).full
        assert "collapsed" in of(constant).sentence
        assert f"post (accuracy {model.test.accuracy:.4f})" in saturation_small._why([of(constant)])


def test_padding_and_the_future_are_told_apart(stage: Stage, tiny: None) -> None:
    outcome = attended_positions.reproduce(stage)
    assert outcome.held is False
    records = kept(stage)
    for name, illegal in (("heads.future", True), ("heads.pad", True), ("heads.legal", False)):
        rows = records.filter(records["name"] == name)
        coded = rows.filter(rows["model"].str.contains("as coded"))["value"]
        written = rows.filter(~rows["model"].str.contains("as coded"))["value"]
        assert coded.max() > 0
        assert (written.max() == 0) is illegal
    positions = records.filter(records["name"] == "heads.saturated_positions")["value"]
    assert positions.max() <= upper_mode(83) + 1e-9


def test_curves_end_higher_and_the_classifiers_bias_changes_nothing(
    stage: Stage, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_curves, "CS", (1.0, 10.0))
    written, coded = scaling_curves._tasks(stage)
    assert {task.cs for task in coded} == {(10.0,)}
    base = replace(written[0], cs=(1.0, 10.0), sentences=4)
    with_it = scaling_curves._curves(base)
    without = scaling_curves._curves(replace(base, classifier_bias=False))
    for a, b in zip(with_it.given, without.given, strict=True):
        assert a.layers[-1].cosine == b.layers[-1].cosine
    assert with_it.exact
    assert with_it.given[-1].layers[-1].cosine > with_it.given[0].layers[-1].cosine
    bare = with_it.without_biases[-1].layers[-1].cosine
    assert bare > with_it.given[-1].layers[-1].cosine


def test_dropout_lowers_the_cosine_of_random_networks() -> None:
    """With none it is the cosine of the network that is deployed."""
    batch = for_kind("bert", padded((7, 3)))
    none = outside("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    some = outside("bert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    expected = {each.layer: each.cosine for each in saturation(none, [batch]).layers}
    found = random_with_dropout(none, [batch], c=1024.0, seed=0)
    assert found == pytest.approx(expected, abs=1e-6)
    noisy = random_with_dropout(some, [batch], c=1024.0, seed=0)
    assert noisy["0"] < 0.9 < expected["0"]
    assert noisy == random_with_dropout(some, [batch], c=1024.0, seed=0)
    assert noisy != random_with_dropout(some, [batch], c=1024.0, seed=1)


def test_text_is_browns_where_it_is_given(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "brown"
    folder.mkdir(parents=True)
    for k in range(3):
        (folder / f"ca0{k}").write_text(
            "\n\n".join(f"the/at jury/nn said/vbd {i}/cd" for i in "123")
        )
    found = sentences_of(replace(stage, data=folder.parent), 2)
    assert found.name == "Brown"
    assert all(each.startswith("the jury said") for each in found.sentences)


def test_without_brown_another_text_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: object, *, count: int) -> list[str]:
        if source != "stdlib":
            raise DataError("none", expected="some", do="give it")
        return ["a line of code"] * count

    monkeypatch.setattr(pretrained, "some_sentences", missing)
    assert sentences_of(stage, 3).name == "Python's library"


def test_paper_scale_without_folders_is_refused(stage: Stage) -> None:
    with pytest.raises(DataError, match="no folder of a model in --data"):
        folders_of(replace(stage, scale="paper"))


def test_a_model_below_random_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same network as both: nothing is below; one layer lowered: it is named."""
    batch = for_kind("bert", padded((7, 3)))
    model = outside("bert")
    found = saturation(model, [batch], fresh=lambda seed: model, seeds=(0,))
    result = pretrained.Result(
        name="one", found=found, with_dropout={each.layer: 0.5 for each in found.layers}
    )
    monkeypatch.setattr(saturation_pretrained, "folders_of", lambda stage: {"one": Path("nowhere")})
    monkeypatch.setattr(saturation_pretrained, "_measured", lambda stage, tasks: [result])
    assert saturation_pretrained.reproduce(stage).held
    first, *rest = found.layers
    lowered = replace(found, layers=(replace(first, cosine=first.cosine - 0.5), *rest))
    monkeypatch.setattr(
        saturation_pretrained, "_measured", lambda stage, tasks: [replace(result, found=lowered)]
    )
    outcome = saturation_pretrained.reproduce(stage)
    assert outcome.held is False
    assert "one is below random at layers 0" in outcome.why


def test_base_models_have_their_published_sizes() -> None:
    pytest.importorskip("transformers")
    plan = saturation_pretrained.paper()
    assert "bert 109," in plan.note
    assert plan.parameters == 222_903_552  # T5-base, tied
    assert torch.get_default_device() == torch.device("cpu")
