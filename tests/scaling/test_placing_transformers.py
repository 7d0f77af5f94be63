"""Models of transformers, built small from their configurations: every parameter, hand-written."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from orderone.core.errors import ModelError
from orderone.scaling.placing import find_roles
from tests.scaling.families_causal import CAUSAL
from tests.scaling.families_encoders import ENCODERS
from tests.scaling.family import made

FAMILIES = CAUSAL | ENCODERS


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_placed_once_as_expected(name: str) -> None:
    family = FAMILIES[name]
    model = made(family)
    roles = find_roles(model)
    names = [name for row in roles.rows for name in (row.name, *row.also)]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters(remove_duplicate=False))
    rows = {row.name: row for row in roles.rows}
    found = {name: rows[name].role for name in family.expected}
    fans = {name: (role.group, role.fan_in, role.fan_out) for name, role in found.items()}
    assert fans == family.expected
    assert (roles.n, roles.tied_head) == (family.n, family.tied)
    assert {row.name for row in roles.rows if row.role.head} == set(family.heads)
    assert all(row.reason for row in roles.rows)
    for row in roles.rows:
        once = row.role.group in ("word", "position", "class-token", "gain", "bias")
        assert row.role.lookup == (once or row.role.group == "relative-bias")
    for zero, expected in family.zero_rows.items():
        assert rows[zero].zero_row == expected


@pytest.mark.parametrize(
    ("name", "start"),
    [("llama", "one"), ("t5", "one"), ("gemma", "zero"), ("gemma2", "zero"), ("gemma3", "zero")],
)
def test_gains_start_as_their_models_make_them(name: str, start: str) -> None:
    model = made(FAMILIES[name], "cpu")
    gains = [row for row in find_roles(model).rows if row.role.group == "gain"]
    parameters = dict(model.named_parameters())
    assert {row.role.start for row in gains} == {start}
    for row in gains:
        assert (parameters[row.name] == (start == "one")).all()


def test_what_is_fixed_or_relative_is_kept() -> None:
    starts = {
        row.name: row.role.start
        for name in ("whisper", "t5", "swin")
        for row in find_roles(made(FAMILIES[name])).rows
    }
    assert starts["model.encoder.embed_positions.weight"] == "keep"  # sinusoids
    assert starts["model.decoder.embed_positions.weight"] == "draw"
    kept = [name for name, start in starts.items() if "relative" in name and start == "keep"]
    assert len(kept) == 2 + 2


@pytest.mark.parametrize("leaf", ["q", "k", "v", "r", "o"])
def test_xlnet_s_maps_keep_unit_variance_at_their_fan_in(leaf: str) -> None:
    """Mean square of the outputs is 1 within 5 deviations √(2/samples + 2/(draws·fan-in))."""
    role = {row.name: row.role for row in find_roles(made(FAMILIES["xlnet"])).rows}[
        f"transformer.layer.0.rel_attn.{leaf}"
    ]
    assert role.fan_in is not None
    generator = torch.Generator().manual_seed(0)
    draws = 200
    weights = torch.randn(draws, 48, 4, 12, generator=generator) / role.fan_in**0.5
    if leaf == "o":  # as the model applies it
        x = torch.randn(draws, 4, 12, generator=generator)
        out = torch.einsum("bnd,bhnd->bh", x, weights)
    else:
        x = torch.randn(draws, 48, generator=generator)
        out = torch.einsum("bh,bhnd->bnd", x, weights)
    deviation = (2 / out.numel() + 2 / (draws * role.fan_in)) ** 0.5
    assert abs(out.square().mean().item() - 1) < 5 * deviation


def test_a_state_space_model_is_refused_by_name() -> None:
    config = hf.MambaConfig(vocab_size=97, hidden_size=48, num_hidden_layers=1)
    with torch.device("meta"):
        model = hf.MambaForCausalLM(config)
    with pytest.raises(ModelError, match=r"no rule places 'backbone\.layers\.0\.mixer\.A_log'"):
        find_roles(model)


def test_a_reason_says_what_the_model_multiplies_its_embedding_by() -> None:
    def reason(name: str) -> str:
        rows = find_roles(made(FAMILIES[name])).rows
        return next(row.reason for row in rows if row.name == "model.embed_tokens.weight")

    assert "which the model multiplies by 6.928" in reason("gemma")
    assert "multiplies" not in reason("llama")
