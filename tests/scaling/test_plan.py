"""The plan as a value: the paper's numbers, its text, its JSON, its refusals."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import nn

import orderone
from orderone.core.errors import ConfigError, ModelError
from orderone.models import EncoderDecoderConfig, LanguageConfig, VisionConfig, build, preset
from orderone.scaling.constants import LANGUAGE_WORD, PRESETS, Constants
from orderone.scaling.matching import required_module
from orderone.scaling.plan import Plan
from orderone.scaling.roles import Role


def language(**settings: Any) -> nn.Module:
    given = {"n": 16, "H": 2, "encoders": 1, "n_vocab": 20, "T": 8, **settings}
    return build(LanguageConfig(**given), seed=0)


def vit() -> nn.Module:
    return build(preset("vit-b16"), device="meta")


# §II.1, n = 768, n_patch = 768, M dropped: exponents of n, of n_patch and of 1000.
VIT = {
    "stem.patch.weight": {"standard": 1, 0.0: 768**-1.5, 0.5: 768**-1.25, 1.0: 768**-1},
    "stem.position.weight": {"standard": 1, 0.0: 768**-0.5, 0.5: 768**-0.25, 1.0: 1},
    **{
        f"blocks.{i}.path.{letter}.weight": {
            "standard": 1, 0.0: 768**-1.5, 0.5: 768**-1.25, 1.0: 768**-1,
        }
        for i, letters in ((0, "QKVU"), (1, "WX"))
        for letter in letters
    },
    "head.W.weight": {"standard": 1} | dict.fromkeys((0.0, 0.5, 1.0), 768**-1 * 1000**-0.5),
    "head.W.bias": {"standard": 1} | dict.fromkeys((0.0, 0.5, 1.0), 1000**-0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", VIT)
@pytest.mark.parametrize("strategy", ["standard", 0.0, 0.5, 1.0])
def test_vision_runs_of_the_paper(name: str, strategy: str | float) -> None:
    """Factors and initial deviations of the paper's ViT-B/16, the four columns of its table."""
    given = {"strategy": strategy} if isinstance(strategy, str) else {"s": strategy}
    model = vit()
    plan = orderone.plan(model, **given, multiplier_in_fans=False)
    assert plan[name].lr_factor == pytest.approx(VIT[name][strategy], rel=1e-12)
    head = {"standard": 768**-0.5, 0.0: 768**-0.5, 0.5: 768**-0.75, 1.0: 768**-1}[strategy]
    std = {
        "patch": 768**-0.5, "position": 0.02, "bias": 0.0, "head": head,
        "U": (1 / 3 / 768) ** 0.5, "W": (2 / 5 / 768) ** 0.5, "X": (8 / 5 / 3072) ** 0.5,
        **dict.fromkeys("QKV", (1 / 2 / 768) ** 0.5),
    }  # fmt: skip
    assert plan[name].init_std == pytest.approx(std[plan[name].role], rel=1e-12)
    assert plan.parameters == 86_444_008
    assert plan.constants == "vision"


def test_language_runs_of_the_paper() -> None:
    """§II.2: C_WE = 1, every other deviation 0.02; n^(−½) for words and positions, n^(−3/2)."""
    model = build(preset("bart-large"), device="meta")
    plan = orderone.plan(model, constants="language-word", multiplier_in_fans=False)
    n = 1024
    assert plan.output_multiplier == pytest.approx(n**-0.5)
    assert plan.parameters == 404_845_568
    for row in plan.rows:
        assert row.init_std == pytest.approx(1.0 if row.role == "word" else 0.02)
        power = -0.5 if row.role in ("word", "position") else -1.5
        assert row.lr_factor == pytest.approx(n**power)
    words = [row for row in plan.rows if row.role == "word"]
    assert [row.zero_row for row in words] == [1]
    standard = orderone.plan(model, "standard", constants="language")
    assert {row.init_std for row in standard.rows} == {0.02}
    assert {row.lr_factor for row in standard.rows} == {1.0}
    assert standard.output_multiplier == 1.0


def test_standard_leaves_an_outside_model_as_it_is() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, n_positions=8)
    model = GPT2LMHeadModel(config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = orderone.plan(model, "standard")
    plan.initialize_(seed=3)
    assert {(row.start, row.init_std, row.lr_factor) for row in plan.rows} == {("keep", None, 1.0)}
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert "as the model made it" in str(plan)
    assert [group["lr"] for group in plan.param_groups(0.5)] == [0.5, 0.5]


def test_M_stays_by_default() -> None:
    """Differs from the paper's runs: W by 1/√M, X by 1/M."""
    model = language(M=4.0)
    kept, dropped = orderone.plan(model), orderone.plan(model, multiplier_in_fans=False)
    W, X = "blocks.1.path.W.weight", "blocks.1.path.X.weight"
    assert kept[W].lr_factor / dropped[W].lr_factor == pytest.approx(1 / 2)
    assert kept[X].lr_factor / dropped[X].lr_factor == pytest.approx(1 / 4)
    assert kept[W].init_std == dropped[W].init_std
    assert kept[X].init_std == dropped[X].init_std


def test_d_model_and_d_ff_use_their_own_fans() -> None:
    plan = orderone.plan(language(d_ff=40))
    assert plan["blocks.1.path.W.weight"].lr_factor == pytest.approx(1 / 16 / math.sqrt(40))
    assert plan["blocks.1.path.X.weight"].lr_factor == pytest.approx(1 / 40 / math.sqrt(16))
    assert plan["blocks.1.path.X.weight"].init_std == pytest.approx(40**-0.5)


def test_constants_by_group() -> None:
    plan = orderone.plan(language(), constants={"Q": 0.25, "word": 9.0})
    assert plan["blocks.0.path.Q.weight"].init_std == pytest.approx(0.5 / 4)
    assert plan["blocks.0.path.K.weight"].init_std == pytest.approx(1 / 4)
    assert plan["stem.word.weight"].init_std == pytest.approx(3.0)
    assert plan.constants == "given"
    assert orderone.plan(language()).constants == "ones"


def test_what_the_paper_leaves_out_starts_like_its_nearest() -> None:
    C = Constants(name="test", C={"Q": 2.0, "W": 3.0, "position": 5.0}, uniform="Q")
    assert [C.variance(g, 1.0) for g in ("qkv", "gate", "class-token", "dense")] == [2, 3, 5, 1]
    assert C.distribution("qkv") == "uniform"
    assert C.distribution("dense") == "normal"
    assert LANGUAGE_WORD.variance("dense", 7.0) == pytest.approx(0.02**2)
    assert LANGUAGE_WORD.variance("word", 1.0) == 1.0


def test_overrides_reach_the_plan() -> None:
    role = Role(group="extra", fan_in=4, fan_out=25)
    plan = orderone.plan(language(), overrides={r"path\.U": role}, constants={"extra": 4.0})
    row = plan["blocks.0.path.U.weight"]
    assert (row.role, row.init_std) == ("extra", pytest.approx(1.0))
    assert row.lr_factor == pytest.approx(1 / 4 / 5)


@pytest.mark.parametrize("strategy", ["neural-tangent", "hybrid", "maximal-update", "standard"])
def test_json_is_an_exact_round_trip(strategy: str) -> None:
    config = EncoderDecoderConfig(
        n=16, H=2, encoders=1, decoders=1, n_vocab=20, T=8, pad=1, bias=True, affine=True
    )
    plan = orderone.plan(build(config, seed=0), strategy)
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_json_has_the_commands_keys() -> None:
    """DESIGN's names for the command; the file adds to them."""
    plan = orderone.plan(model := language(), s=0.3)
    summary = plan.summary()
    assert list(summary) == [
        "parameters", "width", "strategy", "s", "output_multiplier", "rows",
    ]  # fmt: skip
    assert list(summary["rows"][0]) == [
        "name", "role", "fan_in", "fan_out", "lookup", "head", "init_std", "lr_factor",
        "decay_factor", "reason",
    ]  # fmt: skip
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    assert (summary["width"], summary["strategy"], summary["s"]) == (16, "s=0.3", 0.3)
    document = json.loads(plan.to_json())
    assert all(document[key] == summary[key] for key in summary if key != "rows")
    for row, line in zip(document["rows"], summary["rows"], strict=True):
        assert row.items() >= line.items()


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", '{"format": 2}', '{"format": 1, "rows": []}', '{"format": 1, "rows": 3}'],
)
def test_other_json_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="not a plan's JSON") as wrong:
        Plan.from_json(text)
    assert "\n" not in str(wrong.value)


def test_print_is_short_and_the_listing_complete() -> None:
    """A line a kind of parameter, however deep; the listing says why of each."""
    model = build(
        LanguageConfig(n=16, H=2, encoders=25, n_vocab=20, T=8, bias=True, affine=True), seed=0
    )
    plan = orderone.plan(model)
    lines = str(plan).splitlines()
    assert len(plan.rows) > 300
    assert len(lines) <= 20
    assert "neural-tangent (s = 0) at width 16" in lines[0]
    assert "output multiplier 0.25 at 'head'" in lines[-1]
    counts = [int(line.split()[1]) for line in lines[2:-1]]
    assert sum(counts) == len(plan.rows)
    listing = plan.listing().splitlines()
    assert len(listing) == len(plan.rows) + 1
    for line, row in zip(listing[1:], plan.rows, strict=True):
        assert line.startswith(row.name)
        assert line.endswith(row.reason)
        assert row.reason


def test_table_is_a_frame() -> None:
    frame = orderone.plan(model := language()).table()
    assert frame.height == len(list(model.parameters()))
    assert frame.filter(frame["role"] == "X")["fan_in"].to_list() == [64]


def test_html_is_escaped() -> None:
    model = language()
    override = {r"path\.U": Role(group="<script>", fan_in=4, fan_out=4)}
    html = orderone.plan(model, overrides=override)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == len(str(orderone.plan(model)).splitlines()) - 2


def test_wrapped_models_have_the_same_plan() -> None:
    model = language()
    compiled: Any = torch.compile(model, backend="eager")
    assert orderone.plan(compiled) == orderone.plan(model)


def test_a_plan_is_a_value() -> None:
    plan = orderone.plan(language())
    with pytest.raises(FrozenInstanceError):
        plan.s = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyError):
        plan["nothing.of.the.sort"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"strategy": "mup"}, "strategy 'mup'; expected one of neural-tangent"),
        ({"s": 1.5}, r"s = 1.5; expected a number in \[0, 1\]"),
        ({"s": -0.1}, "s = -0.1"),
        ({"s": math.nan}, "s = nan"),
        ({"strategy": "standard", "s": 0.5}, "strategy 'standard' together with s"),
        ({"constants": "imagenet"}, f"constants 'imagenet'; expected one of {', '.join(PRESETS)}"),
        ({"constants": {"QK": 1.0}}, "a constant for group 'QK'"),
        ({"constants": {"Q": -1.0}}, "constant C_Q = -1.0"),
        ({"constants": {"Q": math.inf}}, "constant C_Q = inf"),
        ({"distribution": "cauchy"}, "distribution 'cauchy'; expected one of normal"),
        ({"overrides": {"nowhere": Role(group="Q")}}, "'nowhere' matches no parameter"),
        ({"undecayed": "bias"}, "undecayed = 'bias'; expected a collection of groups"),
    ],
)
def test_bad_input_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        orderone.plan(language(), **arguments)
    assert "\n" not in str(wrong.value)


def test_what_is_no_model_is_one_line() -> None:
    """Also of the factory for a base width."""
    with pytest.raises(ModelError, match="the model is a str; expected a torch"):
        required_module("preset:r2c2", "the model")
    with pytest.raises(ModelError, match=r"make\(8\) is a int"):
        orderone.plan(language(), base_width=8, make=lambda n: n)  # pyright: ignore[reportArgumentType]


def test_vision_constants_only_with_patches() -> None:
    """Also where the class is a subclass made elsewhere, as FSDP2 makes one."""
    config = VisionConfig(n=16, H=2, encoders=1, image_size=16, patch=8, n_out=7)
    model = build(config, seed=0)
    plan = orderone.plan(model, "standard")
    assert plan.constants == "vision"
    model.__class__ = type("Sharded", (type(model),), {"__module__": "elsewhere"})
    assert orderone.plan(model, "standard") == plan
    assert {row.start for row in plan.rows} == {"draw", "zero"}
    assert orderone.plan(language(), "standard").constants == "the model's own"
