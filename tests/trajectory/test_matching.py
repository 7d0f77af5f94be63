"""Prefixes, tied and missing tensors: matched, and said."""

import pytest
import torch

from orderone.trajectory.sources import open_series
from tests.trajectory.series_files import assert_holds, weights, write_safetensors, write_torch


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.", "net."])
def test_a_prefix_in_some_checkpoints(tmp_path, prefix):
    for step in (1, 2, 3):
        tensors = weights(step)
        if step == 2:
            tensors = {prefix + name: each for name, each in tensors.items()}
        write_safetensors(tmp_path / f"step{step}.safetensors", tensors)
    series = open_series(tmp_path)
    assert series.findings == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, weights(checkpoint.step))
    (note,) = series.notes
    assert "prefix" in note


def test_a_prefix_that_most_have_and_one_has_not(tmp_path):
    for step in (1, 2, 3):
        tensors = weights(step)
        if step != 1:
            tensors = {f"model.{name}": each for name, each in tensors.items()}
        write_safetensors(tmp_path / f"step{step}.safetensors", tensors)
    series = open_series(tmp_path)
    assert series.findings == ()
    expected = {f"model.{name}": each for name, each in weights(1).items()}
    assert_holds(series.checkpoints[0], expected)
    assert series.notes == ("'step1': names matched across the prefix 'model.'",)


def test_a_prefix_on_all_but_the_head(tmp_path):
    """The body alone beside the model with its head: 'layers.0…' and 'model.layers.0…'."""
    head = {"lm_head.weight": torch.randn(4, 6)}
    for step in (1, 2, 3):
        tensors = weights(step)
        if step == 3:
            tensors = {f"model.{name}": each for name, each in tensors.items()} | head
        write_safetensors(tmp_path / f"step{step}.safetensors", tensors)
    series = open_series(tmp_path)
    assert series.findings == ()
    assert_holds(series.checkpoints[2], weights(3))
    assert series.notes == (
        "'step3': names matched across the prefix 'model.'",
        "'step3': 'lm_head.weight' only here, left out",
    )


@pytest.mark.parametrize("old", [False, True])
def test_tied_tensors_count_once(tmp_path, old):
    for step in (1, 2):
        tensors = weights(step)
        tied = tensors | {"a.lm_head.weight": tensors["embed.weight"]}
        write_torch(tmp_path / f"step{step}.pt", tied, old=old)
    series = open_series(tmp_path)
    assert series.findings == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, weights(checkpoint.step))
    assert series.notes == ("tied, counted once: 'a.lm_head.weight = embed.weight'",)


def test_a_head_that_some_leave_to_the_embedding(tmp_path):
    for step in (1, 2, 3):
        tensors = weights(step)
        if step != 2:
            tensors |= {"lm_head.weight": tensors["embed.weight"].clone()}
        write_safetensors(tmp_path / f"step{step}.safetensors", tensors)
    series = open_series(tmp_path)
    assert series.findings == ()
    for checkpoint in series.checkpoints:
        assert_holds(checkpoint, weights(checkpoint.step))
    assert series.notes == ("'lm_head.weight': tied to the embedding in some, left out of all",)


def test_parts_of_one_tensor_are_not_tied(tmp_path):
    packed = torch.randn(6, 4)
    tensors = {"q": packed[:2], "k": packed[2:4], "v": packed[4:], "all": packed.t()}
    write_torch(tmp_path / "step1.pt", tensors)
    (checkpoint,) = open_series(tmp_path).checkpoints
    assert_holds(checkpoint, tensors)


def test_what_is_not_learned_is_left_out(tmp_path):
    tables = {
        "h.0.attn.bias": torch.ones(1, 1, 4, 4),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "h.0.rotary_emb.inv_freq": torch.ones(3),
        "position_ids": torch.arange(4),
        "norm.running_mean": torch.ones(3),
        "norm.num_batches_tracked": torch.tensor(3),
        "mask": torch.ones(2, dtype=torch.bool),
    }
    learned = weights() | {"h.0.attention.out.bias": torch.ones(4), "attn.bias": torch.ones(4)}
    write_safetensors(tmp_path / "step1.safetensors", tables | learned)
    series = open_series(tmp_path)
    assert_holds(series.checkpoints[0], learned)
    assert series.notes == (
        "not weights, left out: 'h.0.attn.bias', 'h.0.attn.masked_bias', "
        "'h.0.rotary_emb.inv_freq' and 4 more",
    )


def test_nothing_but_integers_is_a_finding(tmp_path):
    write_safetensors(tmp_path / "step1.safetensors", {"a": torch.arange(3)})
    (finding,) = open_series(tmp_path).findings
    assert (finding.kind, finding.detail) == ("unreadable", "no floating-point weights in it")


def test_the_same_name_with_and_without_prefix_is_a_finding(tmp_path):
    tensors = {"a": torch.ones(2), "module.a": torch.zeros(2)}
    write_safetensors(tmp_path / "step1.safetensors", tensors)
    (finding,) = open_series(tmp_path).findings
    assert finding.kind == "unreadable"
