"""Every parameter has its role: our models by the papers' table, torch's modules, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.models import EncoderDecoderConfig, LanguageConfig, VisionConfig, build, preset
from orderone.scaling.placing import find_roles, require_roles
from orderone.scaling.roles import Placement, Role, Roles


def by_name(roles: Roles) -> dict[str, Placement]:
    return {row.name: row for row in roles.rows}


def assert_covers(model: nn.Module, roles: Roles) -> None:
    """Every name once, with its shape, whole fans and a reason."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    names = [name for row in roles.rows for name in (row.name, *row.also)]
    assert sorted(names) == sorted(shapes)
    for row in roles.rows:
        assert row.shape == shapes[row.name]
        assert row.reason
        assert row.fans().fan_in >= 1
        assert row.fans().fan_out >= 1


# Sizes that no two of the table's entries share.
n, H, d_ff, n_vocab, T, n_out = 24, 2, 56, 35, 9, 7
SIZES = {"n": n, "H": H, "d_ff": d_ff, "encoders": 2, "bias": True, "affine": True}
WORDS = {**SIZES, "n_vocab": n_vocab, "T": T}
VISION = VisionConfig(**SIZES, image_size=8, patch=4, channels=3, n_out=n_out)
LANGUAGE = LanguageConfig(**WORDS, head_tied=False, head_bias=True)
ENCODER_DECODER = EncoderDecoderConfig(**WORDS, decoders=2, pad=3)

# The papers' table, typed: (fan-in, fan-out), lookups' fan-in 1.
TABLE = {
    "word": (1, n),
    "position": (1, n),
    "class-token": (1, n),
    "Q": (n, n),
    "K": (n, n),
    "V": (n, n),
    "U": (n, n),
    "W": (n, d_ff),
    "X": (d_ff, n),
    "gain": (1, n),
}


@pytest.mark.parametrize(
    ("config", "also"),
    [
        (VISION, {"patch": (48, n), "head": (n, n_out)}),
        (VISION.replace(stem="class-token"), {"patch": (48, n), "head": (n, n_out)}),
        (LANGUAGE, {"head": (n, n_vocab)}),
        (ENCODER_DECODER, {}),
    ],
)
def test_own_models_have_the_table_s_fans(
    config: VisionConfig | LanguageConfig | EncoderDecoderConfig,
    also: dict[str, tuple[int, int]],
) -> None:
    model = build(config, device="meta")
    roles = find_roles(model)
    assert_covers(model, roles)
    assert roles.n == n
    table = TABLE | also
    for row in roles.rows:
        role = row.role
        fans = (1, row.shape[0]) if role.group == "bias" else table[role.group]
        assert (role.fan_in, role.fan_out) == fans, row
        lookups = ("word", "position", "class-token", "gain", "bias")
        assert role.lookup == (role.group in lookups), row
        assert role.head == row.name.startswith("head."), row
        assert role.start == {"gain": "one", "bias": "zero"}.get(role.group, "draw"), row
    letters = {row.name.split(".")[-2] for row in roles.rows if "path" in row.name}
    groups = {row.role.group for row in roles.rows if "path" in row.name} - {"bias"}
    assert groups == letters == set("QKVUWX")


def test_tied_head_of_our_own_models_is_named_and_explained() -> None:
    roles = find_roles(build(ENCODER_DECODER, device="meta"))
    word = by_name(roles)["word.weight"]
    assert roles.tied_head == "head"
    assert not word.role.head
    assert word.zero_row == 3
    assert "'head' takes the output multiplier" in word.reason
    assert find_roles(build(LANGUAGE, device="meta")).tied_head is None


def test_convolutions_of_a_stem_sum_over_their_area() -> None:
    rows = by_name(find_roles(build(VISION.replace(stem="convolutions"), device="meta")))
    first, second, patch = (
        rows[f"stem.{name}.weight"].role for name in ("convolutions.0", "convolutions.1", "patch")
    )
    assert (first.group, first.fan_in, first.fan_out) == ("convolution", 27, n // 2)
    assert (second.group, second.fan_in, second.fan_out) == ("convolution", 9 * n // 2, n)
    assert (patch.group, patch.fan_in, patch.fan_out) == ("patch", n, n)


def test_r2c2_is_placed_without_memory() -> None:
    model = build(preset("r2c2"), device="meta")
    roles = find_roles(model)
    assert_covers(model, roles)
    assert roles.n == 2048
    assert sum(1 for row in roles.rows if row.role.group == "Q") == 22 + 2 * 22


class Conv1D(nn.Module):
    """A map that is stored as (in, out), as transformers' is."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.nf, self.nx = fan_out, fan_in
        self.weight = nn.Parameter(torch.empty(fan_in, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(300, 200, bias=False), (300,)),
        (Conv1D(300, 200), (300,)),
        (nn.Conv1d(64, 40, 5, bias=False), (64, 5)),
        (nn.Conv2d(64, 40, 3, groups=4, bias=False), (64, 3, 3)),
        (nn.Conv3d(16, 40, (2, 3, 4), bias=False), (16, 2, 3, 4)),
    ],
)
def test_fan_in_is_what_keeps_a_unit_signal_of_unit_variance(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    """Mean square of 4,000 or more outputs is 1 within 5 deviations √(2/samples)."""
    body = nn.Module()
    body.inner, body.head = module, nn.Linear(3, 2)
    fan_in = by_name(find_roles(body))["inner.weight"].role.fan_in
    assert fan_in is not None
    generator = torch.Generator().manual_seed(0)
    squares: list[Tensor] = []
    for _ in range(100):
        weight = torch.randn(module.weight.shape, generator=generator) / fan_in**0.5
        out = torch.func.functional_call(
            module, {"weight": weight}, torch.randn(1, *shape, generator=generator)
        )
        squares.append(out.flatten().square())
    mean_square = torch.cat(squares).mean().item()
    # Outputs of one draw share its input: their mean square varies as that of fan_in numbers.
    assert abs(mean_square - 1) < 5 * (2 / 4000 + 2 / (100 * fan_in)) ** 0.5


def fans(roles: Roles) -> dict[str, tuple[str, int | None, int | None]]:
    return {row.name: (row.role.group, row.role.fan_in, row.role.fan_out) for row in roles.rows}


def test_torch_s_attention_packed_and_apart() -> None:
    layer = nn.TransformerEncoderLayer(n, H, d_ff)
    assert_covers(layer, find_roles(layer))
    found = fans(find_roles(layer))
    assert found["self_attn.in_proj_weight"] == ("qkv", n, n)
    assert found["self_attn.out_proj.weight"] == ("U", n, n)
    assert found["linear1.weight"] == ("W", n, d_ff)
    apart = fans(find_roles(nn.MultiheadAttention(n, H, kdim=10, vdim=14, add_bias_kv=True)))
    assert apart["q_proj_weight"] == ("Q", n, n)
    assert apart["k_proj_weight"] == ("K", 10, n)
    assert apart["v_proj_weight"] == ("V", 14, n)
    assert apart["in_proj_bias"] == ("bias", 1, n)
    assert apart["bias_k"] == ("bias", 1, n)


class Named(nn.Module):
    """Modules under given names."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Attention(Named):
    pass


def test_one_part_s_fan_out_of_what_is_packed() -> None:
    """In any split: q's width is what the output map takes in, a gate's what X takes in."""
    model = Named(
        attn=Attention(qkv=nn.Linear(n, 40 + 2 * 10), proj=nn.Linear(40, n)),
        cross=Attention(q=nn.Linear(n, 40), kv=nn.Linear(n, 20), proj=nn.Linear(40, n)),
        mlp=Named(fc1=nn.Linear(n, 2 * d_ff), fc2=nn.Linear(d_ff, n)),
        plain=Named(fc1=nn.Linear(n, d_ff), fc2=nn.Linear(d_ff, n)),
        two=Named(w1=nn.Linear(n, d_ff), w2=nn.Linear(d_ff, n)),
        three=Named(w1=nn.Linear(n, d_ff), w2=nn.Linear(d_ff, n), w3=nn.Linear(n, d_ff)),
        moe=Named(gate=nn.Linear(n, 4), experts=nn.Identity()),
        head=nn.Linear(n, n_out),
    )
    found = fans(find_roles(model))
    assert found["attn.qkv.weight"] == ("qkv", n, 40)
    assert found["attn.qkv.bias"] == found["cross.q.bias"] == ("bias", 1, 40)
    assert found["cross.q.weight"] == ("Q", n, 40)
    assert found["cross.kv.weight"] == ("qkv", n, 10)
    assert found["mlp.fc1.weight"] == found["plain.fc1.weight"] == ("W", n, d_ff)
    assert found["mlp.fc1.bias"] == found["plain.fc1.bias"] == ("bias", 1, d_ff)
    assert found["two.w1.weight"] == found["three.w3.weight"] == ("W", n, d_ff)
    assert found["three.w1.weight"] == ("gate", n, d_ff)
    assert found["moe.gate.weight"] == ("dense", n, 4)


class TimesW(nn.Module):
    """A norm that torch does not know."""

    plus, leaf = 0.0, "weight"

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter(self.leaf, nn.Parameter(torch.full((n,), 0.3)))

    def forward(self, x: Tensor) -> Tensor:
        x = x * x.square().mean(-1, keepdim=True).rsqrt()
        return x * (self.plus + getattr(self, self.leaf))


class SomeRMSNorm(TimesW):
    pass


class ShiftedRMSNorm(TimesW):
    plus, leaf = 1.0, "scale"


class ShiftedLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias)


class ImageLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SilentNorm(TimesW):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return super().forward(x) * gate


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_gain_starts_where_it_does_nothing(device: str) -> None:
    """By what the module computes, whatever values its gain has now."""
    kinds: dict[str, tuple[Callable[[], nn.Module], str]] = {
        "layer": (lambda: nn.LayerNorm(n), "one"),
        "group": (lambda: nn.GroupNorm(2, n), "one"),
        "batch": (lambda: nn.BatchNorm2d(n), "one"),
        "rms": (SomeRMSNorm, "one"),
        "shifted": (ShiftedRMSNorm, "zero"),
        "shifted_layer": (lambda: ShiftedLayerNorm(n), "zero"),
        "images": (lambda: ImageLayerNorm(n), "one"),
        "silent": (SilentNorm, "keep"),
    }
    with torch.device(device):
        model = Named(**{name: make() for name, (make, _) in kinds.items()}, head=nn.Linear(n, 2))
        rows = by_name(find_roles(model))
    starts = {
        name.split(".")[0]: row.role.start for name, row in rows.items() if row.role.group == "gain"
    }
    assert starts == {name: start for name, (_, start) in kinds.items()}
    assert rows["shifted_layer.bias"].role.start == "zero"


def test_the_head_is_found_by_name_else_by_its_place() -> None:
    mlp = nn.Sequential(nn.Linear(10, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 3))
    roles = find_roles(mlp)
    assert [row.name for row in roles.rows if row.role.head] == ["4.weight", "4.bias"]
    assert roles.n == n
    several = Named(
        body=nn.Linear(10, n),
        heads=nn.ModuleList([nn.Linear(n, 3), nn.Sequential(nn.Linear(n, n), nn.Linear(n, 5))]),
        last=nn.Linear(8, 8),
    )
    found = {row.name for row in find_roles(several).rows if row.role.group == "head"}
    assert found == {"heads.0.weight", "heads.1.1.weight"}
    layers = nn.ModuleList(Named(fc1=nn.Linear(n, d_ff), fc2=nn.Linear(d_ff, n)) for _ in range(2))
    body = find_roles(Named(layers=layers))
    assert not any(row.role.head for row in body.rows)


class Body(Named):
    """Says what it is, as transformers' models do."""

    @property
    def base_model(self) -> nn.Module:
        return self


def test_the_last_map_of_a_body_or_of_a_pooler_is_hidden() -> None:
    for model in (Body(final=nn.Linear(n, n)), Named(body=nn.Linear(n, n), pool=nn.Linear(n, n))):
        assert not any(row.role.head for row in find_roles(model).rows)


def test_frozen_parameters_are_placed_and_kept() -> None:
    model = Named(positions=nn.Embedding(T, n), head=nn.Linear(n, 2))
    model.get_submodule("positions").requires_grad_(False)
    row = by_name(find_roles(model))["positions.weight"]
    assert (row.role.group, row.role.start) == ("position", "keep")
    assert "frozen" in row.reason


def tied(**others: nn.Module) -> Named:
    model = Named(word=nn.Embedding(n_vocab, n), **others, lm_head=nn.Linear(n, n_vocab))
    model.lm_head.weight = model.word.weight  # pyright: ignore
    return model


def test_a_tied_head_is_a_lookup_and_its_bias_the_head_s() -> None:
    roles = find_roles(tied())
    rows = by_name(roles)
    assert rows["word.weight"].also == ("lm_head.weight",)
    assert rows["word.weight"].role == Role(group="word", fan_in=1, fan_out=n, lookup=True)
    assert rows["lm_head.bias"].role.head
    assert (roles.n, roles.tied_head) == (n, "lm_head")


def test_one_tensor_in_two_roles_is_refused_by_both_names() -> None:
    model = Named(word=nn.Embedding(n, n), mixer=nn.Linear(n, n, bias=False), head=nn.Linear(n, 2))
    model.mixer.weight = model.word.weight  # pyright: ignore
    with pytest.raises(
        ModelError, match=r"word \(1 → 24\) at 'word.weight' and dense .*'mixer.weight'"
    ):
        find_roles(model)
    said = find_roles(model, {"mixer": Role(group="dense", fan_in=n)})
    assert by_name(said)["word.weight"].role.group == "dense"


def test_one_tensor_in_one_role_twice_is_fine() -> None:
    block = Named(fc1=nn.Linear(n, d_ff), fc2=nn.Linear(d_ff, n))
    model = Named(layers=nn.ModuleList([block, block]), head=nn.Linear(n, 2))
    roles = find_roles(model)
    assert_covers(model, roles)
    assert by_name(roles)["layers.0.fc1.weight"].also == ("layers.1.fc1.weight",)


def test_overrides_decide_first_match_first() -> None:
    model = Named(a=Conv1D(n, d_ff), b=nn.Linear(n, d_ff), head=nn.Linear(n, 2))
    first, second = Role(group="W", start="zero"), Role(group="X", fan_out=5)
    rows = by_name(find_roles(model, {r"^a\.": first, r"weight$": second}))
    # Fans that are left out are the rule's, which knows that a Conv1D is stored as (in, out).
    assert rows["a.weight"].role == Role(group="W", fan_in=n, fan_out=d_ff, start="zero")
    assert rows["b.weight"].role == Role(group="X", fan_in=n, fan_out=5)
    assert rows["a.weight"].reason == r"override '^a\.'"
    assert rows["b.bias"].role.group == "bias"


class Raw(nn.Module):
    """Parameters that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ABCDEF":
            self.register_parameter(name, nn.Parameter(torch.zeros(5, 3, 2)))
        self.head = nn.Linear(n, 2)


def test_what_no_rule_places_is_refused_by_name_in_one_line() -> None:
    with pytest.raises(ModelError) as refusal:
        find_roles(Raw())
    text = str(refusal.value)
    assert "'A' (5, 3, 2) of Raw" in text
    assert "and 2 more" in text
    assert "overrides={r'A$': Role(" in text
    assert "\n" not in text
    rows = by_name(
        find_roles(Raw(), {"[A-C]": Role(group="dense"), "[D-F]": Role(group="bias", lookup=True)})
    )
    assert (rows["B"].role.fan_in, rows["B"].role.fan_out) == (6, 5)
    assert (rows["E"].role.fan_in, rows["E"].role.fan_out) == (1, 2)


@pytest.mark.parametrize(
    ("pattern", "role", "said"),
    [
        ("nowhere", Role(group="Q"), "'nowhere' matches no parameter; expected a pattern"),
        ("(", Role(group="Q"), "'(': missing )"),
        ("bias", Role(group="Q"), "'head.bias' (2,) as a map without fans"),
    ],
)
def test_impossible_overrides_are_one_line(pattern: str, role: Role, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        find_roles(Named(head=nn.Linear(n, 2)), {pattern: role})
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_override_that_is_no_role_is_one_line() -> None:
    with pytest.raises(ConfigError, match="override 'bias': 'Q'; expected a Role"):
        require_roles({"bias": "Q"})


def test_a_model_without_parameters_or_shapes_is_refused() -> None:
    with pytest.raises(ModelError, match="Identity has no parameters"):
        find_roles(nn.Identity())
    with pytest.raises(ModelError, match=r"'head\.weight' has no shape yet"):
        find_roles(Named(head=nn.LazyLinear(3)))
