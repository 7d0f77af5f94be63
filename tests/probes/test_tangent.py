"""The structured NTK is the dense Jacobian's, whatever the model is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.probes import tangent_memory
from orderone.probes.coordinates import gradients
from orderone.probes.tangent import Tangent, tangent
from tests.models.reference import encoder_decoder, language, vision
from tests.probes.dense import averaged, jacobian, kernels

PRECISION = 1e-9


def tokens(*shape: int, n_vocab: int = 31) -> Tensor:
    return torch.randint(n_vocab, shape, generator=torch.Generator().manual_seed(3))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def assert_dense(model: nn.Module, inputs: Any, output: Any = None, memory: Any = "1GiB") -> None:
    """Every parameter's kernel, full and averaged, against the dense one.

    Samples are taken together, and one after another.
    """
    for signals in (10**9, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tangent_memory, "_SIGNALS", signals)
            assert_dense_so(model, inputs, output, memory)


def assert_dense_so(model: nn.Module, inputs: Any, output: Any, memory: Any) -> None:
    model = model.double().eval()
    pick = output or (lambda raw: raw)
    named = inputs if isinstance(inputs, Mapping) else {}
    arguments = () if named else inputs if isinstance(inputs, tuple) else (inputs,)
    n_out = pick(model(*arguments, **named)).shape[-1]
    expected = kernels(jacobian(model, lambda m: pick(m(*arguments, **named))))
    groups = {name: (name, 1.0) for name in expected}
    full = tangent(model, inputs, groups=groups, outputs="full", output=output, memory=memory)
    mean = tangent(model, inputs, groups=groups, output=output, memory=memory)
    assert full.groups.keys() == expected.keys()
    largest = max(K.abs().max().item() for K in expected.values())
    for name, K in expected.items():
        # A key's bias moves no softmax: its kernel is 0, and only the model's scale has a meaning.
        scale = max(K.abs().max().item(), 1e-12 * largest)
        assert (full.groups[name] - K).abs().max().item() <= PRECISION * scale, name
        assert (mean.groups[name] - averaged(K, n_out)).abs().max() <= PRECISION * scale, name
    assert math.prod(full.shape) == len(full.total)
    assert mean.shape == full.shape[:-1]


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
@pytest.mark.parametrize("tied", [True, False])
def test_our_language_model(placement: str, tied: bool) -> None:
    """Tied: the embedding is a lookup, the head, and their cross terms."""
    untied = {} if tied else {"head_tied": False, "n_out": 4, "head_bias": True}
    settings = {"encoders": 1, "bias": True, "affine": True, "n_vocab": 9, "pad": 1}
    model = language(placement=placement, **settings, **untied)
    assert_dense(model, tokens(2, 5, n_vocab=9))


@pytest.mark.parametrize(
    ("stem", "head"),
    [("patch", "mean"), ("class-token", "class-token"), ("convolutions", "per-token")],
)
def test_our_vision_model(stem: str, head: str) -> None:
    model = vision(stem=stem, head=head, bias=True, affine=True, encoders=1, n_out=3)
    assert_dense(model, normal(2, 3, 16, 16))


def test_our_encoder_decoder() -> None:
    model = encoder_decoder(
        encoders=1, decoders=1, bias=True, affine=True, n_vocab=7, stem_norm=True
    )
    assert_dense(model, (tokens(2, 5, n_vocab=7), tokens(2, 4, n_vocab=7)))


def test_gpt2_of_transformers() -> None:
    """Conv1D, learned positions by lookup, and a tied head."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, use_cache=False
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    assert_dense(model, tokens(2, 5, n_vocab=11), output=lambda raw: raw.logits)


def test_vit_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    assert_dense(model, normal(2, 3, 8, 8), output=lambda raw: raw.logits)


def test_torchs_own_encoder_layer() -> None:
    """Packed projections inside one function stay with autograd."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert_dense(layer, normal(2, 3, 8))


class Mixed(nn.Module):
    """One matrix used in every way: both sides of it fixed, looked up, transposed, in raw form."""

    def __init__(self, ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.W = nn.Parameter(normal(16, 16) / 4)
        self.b = nn.Parameter(normal(16))
        self.g = nn.Parameter(normal(16))
        self.scale = nn.Parameter(normal())

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.scale
        for way in self.ways:
            z = torch.tanh(z)
            if way == "l":
                z = functional.linear(z, self.W, self.b)
            elif way == "m":
                z = z @ self.W + self.b
            elif way == "e":
                z = z + functional.embedding(torch.tensor([[3, 3, 5]]), self.W, padding_idx=5)
            elif way == "a":
                z = torch.addmm(self.b, z.flatten(0, 1), self.W).view(z.shape)
            elif way == "t":
                z = z @ self.W.T
            elif way == "n":
                z = functional.layer_norm(z, (16,), self.g, self.b)
            elif way == "r":
                z = functional.rms_norm(z, (16,), self.g)
            elif way == "+":
                z = functional.linear(z, self.W)
                z += self.b
                z.mul_(self.g)
        return z


@pytest.mark.parametrize("ways", ["ll", "lm", "le", "me", "ea", "lt", "nr", "lnmera+", "e+", "++l"])
def test_uses_of_one_parameter_are_summed_before_the_product(ways: str) -> None:
    assert_dense(Mixed(ways), normal(2, 3, 16))


class Overwriting(nn.Module):
    """Changes in place what a linear map has just read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = x.clone()
        h = self.first(z)
        z.mul_(0.5)
        return self.second(h + z)


def test_a_signal_that_is_overwritten() -> None:
    """Autograd itself refuses it."""
    with pytest.raises(ModelError, match="changed in place"):
        tangent(Overwriting(), torch.ones(2, 4, 3))


class TimeFirst(nn.Module):
    """Moves samples away from the first axis, as recurrent networks and some attentions do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x.transpose(0, 1)).cumsum(0).tanh()).transpose(0, 1)


def test_the_order_of_axes_inside_does_not_matter() -> None:
    assert_dense(TimeFirst(), normal(3, 5, 3))


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), nn.Tanh(), nn.Flatten()],
        [nn.Unflatten(2, (4, 4)), nn.Conv2d(3, 4, (2, 3), padding=(1, 0)), nn.Flatten()],
        [nn.Conv1d(3, 6, 3, groups=3, padding="same"), nn.Tanh(), nn.Flatten()],
        [nn.BatchNorm1d(3), nn.Conv1d(3, 2, 1, bias=False), nn.Flatten()],
        [nn.Flatten(), nn.Bilinear(48, 48, 2)],
    ],
)
def test_convolutions_and_other_layers(layers: list[nn.Module]) -> None:
    body = nn.Sequential(*layers)
    if isinstance(body[-1], nn.Bilinear):
        bilinear = body[-1]
        body = nn.Sequential(body[0])
        body.bilinear = bilinear
        body.forward = lambda x: bilinear(x.flatten(1), x.flatten(1).cos())
    assert_dense(body, normal(2, 3, 16))


@pytest.mark.parametrize("sigma", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Tanh()])
def test_activations(sigma: nn.Module) -> None:
    torch.manual_seed(0)
    assert_dense(nn.Sequential(nn.Linear(4, 6), sigma, nn.Linear(6, 3)), normal(3, 2, 4))


def least_memory(model: nn.Module, inputs: Tensor, outputs: Any) -> float:
    """MiB, as the refusal of too little says."""
    with pytest.raises(ConfigError, match="at least") as refusal:
        tangent(model, inputs, outputs=outputs, memory=1)
    return float(refusal.value.expected.split()[2])


@pytest.mark.parametrize("outputs", ["mean", "full"])
def test_little_memory_changes_nothing_but_the_order_of_work(outputs: Any) -> None:
    model = language(n=8, H=2, encoders=1, n_vocab=9, head_tied=False, n_out=2).double()
    x = tokens(2, 3, n_vocab=9)
    whole = tangent(model, x, outputs=outputs)
    for factor in (1.0, 2.0, 4.0):
        memory = f"{factor * least_memory(model, x, outputs) + 0.01:.3f}MiB"
        parted = tangent(model, x, outputs=outputs, memory=memory)
        torch.testing.assert_close(parted.total, whole.total, rtol=1e-12, atol=1e-12)
        assert parted.gradient_size == pytest.approx(whole.gradient_size, rel=1e-12)


def peak(run: Any) -> int:
    """Most bytes of tensors that ``run`` held at one time, from the allocator's own events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    held = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize("outputs", ["mean", "full"])
def test_memory_stays_within_its_bound(outputs: Any) -> None:
    """Against every allocation that torch makes."""
    model = language(n=32, H=2, encoders=1, n_vocab=20, head_tied=False, n_out=6)
    x = tokens(3, 6, n_vocab=20)
    tangent(model, x, outputs=outputs)
    least = least_memory(model, x, outputs)
    used = peak(lambda: tangent(model, x, outputs=outputs, memory=f"{2 * least}MiB"))
    assert used <= 2 * least * 2**20
    unbounded = peak(lambda: tangent(model, x, outputs=outputs))
    assert unbounded > used  # so the bound was felt


def test_groups_sum_to_the_total_and_factors_multiply() -> None:
    model = language(encoders=1, bias=True).double()
    x = tokens(2, 4)
    by_role = tangent(model, x)
    whole = tangent(model, x, groups={n: ("all", 1.0) for n, _ in model.named_parameters()})
    assert {"embedding", "query", "key", "value", "output", "mlp-in", "bias"} <= set(by_role.groups)
    torch.testing.assert_close(by_role.total, whole.total)
    torch.testing.assert_close(whole.groups["all"], whole.total)
    rows = [
        SimpleNamespace(
            name=n, role="all", factor=lambda optimizer: 3.0 if optimizer == "sgd" else 5.0
        )
        for n, _ in model.named_parameters()
    ]
    planned = tangent(model, x, groups=SimpleNamespace(rows=rows))
    torch.testing.assert_close(planned.total, 3.0 * whole.total)
    adam = tangent(model, x, groups=SimpleNamespace(rows=rows), optimizer="adamw")
    torch.testing.assert_close(adam.total, 5.0 * whole.total / whole.gradient_size["all"])


def test_frozen_and_unnamed_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    x = normal(2, 3)
    named = tangent(model, x, groups={"1.weight": ("head", 2.0)})
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    frozen = tangent(model, x, groups={n: ("head", 2.0) for n, _ in model.named_parameters()})
    s = model[0](x)
    torch.testing.assert_close(named.total, (2 * s @ s.T).detach())
    torch.testing.assert_close(frozen.total, named.total)


def test_the_size_of_a_gradient_is_that_of_the_dense_jacobian() -> None:
    """R.m.s. over outputs and elements; of a lookup table over the rows that occur."""
    model = language(encoders=1, head_tied=False, n_out=4).double()
    x = tokens(2, 4)
    J = jacobian(model, lambda m: m(x))
    groups = {name: (name, 1.0) for name in J}
    found = tangent(model, x, groups=groups).gradient_size
    for name, each in J.items():
        share = len(x.unique()) / 31 if name == "stem.word.weight" else 1.0
        assert found[name] == pytest.approx(math.sqrt(each.square().mean() / share), rel=1e-9)


def test_rows_of_a_lookup_that_occur() -> None:
    """The row of padding has no gradient, and does not count."""
    table = nn.Embedding(9, 4, padding_idx=2)
    model = nn.Sequential(table, nn.Linear(4, 3)).double()
    x = torch.tensor([[1, 2, 5], [5, 2, 2]])
    found = tangent(model, x, groups={"0.weight": ("table", 1.0)}).gradient_size["table"]
    squares = 3 * model[1].weight.square().sum()  # of 6 positions, 3 have a gradient
    assert found == pytest.approx((squares / (6 * 3) / (2 * 4)).sqrt().item(), rel=1e-12)


def adam_case() -> tuple[nn.Module, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    model = language(encoders=1, n_vocab=9).double()
    x = tokens(2, 4, n_vocab=9)
    functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    g = gradients(model)
    return model, x, g, jacobian(model, lambda m: m(x))


def test_adamw_by_the_size_of_a_given_gradient() -> None:
    model, x, g, J = adam_case()
    groups = {name: (name, 1.0) for name in J}
    found = tangent(model, x, groups=groups, optimizer="adamw", gradient=g, outputs="full")
    for name, K in kernels(J).items():
        size = g[name].square().mean().sqrt().item()
        assert found.gradient_size[name] == pytest.approx(size)
        torch.testing.assert_close(found.groups[name], K / size)


def test_adamw_by_each_parameters_own_gradient_and_epsilon() -> None:
    model, x, g, J = adam_case()
    groups = {name: (name, 0.5) for name in J}
    found = tangent(
        model, x, groups=groups, optimizer="adamw", gradient=g, epsilon=1e-2, outputs="full"
    )
    for name, each in J.items():
        weighted = each / (g[name].abs().flatten() + 1e-2)
        torch.testing.assert_close(found.groups[name], 0.5 * weighted @ each.mT)


def test_float32_keeps_its_digits() -> None:
    """Error of rounding alone, relative to the kernel's size, over 10⁵ products an entry."""
    model = language(n=96, H=4, encoders=1, head_tied=False, n_out=3)
    x = tokens(3, 8)
    single = tangent(model, x, outputs="full").total
    double = tangent(model.double(), x, outputs="full").total
    assert single.dtype == torch.float64
    assert (single - double).abs().max() < 3e-6 * double.abs().max()


def test_bfloat16_is_contracted_in_float32() -> None:
    model = language(encoders=1, head_tied=False, n_out=3)
    x = tokens(2, 4)
    exact = tangent(model.double(), x).total
    found = tangent(model.bfloat16(), x).total
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()


def test_inputs_by_name_and_dropout_off() -> None:
    model = language(encoders=1, dropout=0.5, attention_dropout=0.5).double().train()
    x = tokens(2, 4)
    once, twice = tangent(model, {"tokens": x}), tangent(model, (x,))
    assert torch.equal(once.total, twice.total)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_the_kernel_is_that_of_a_step() -> None:
    """f(θ − ηλ∇(v·f)) − f = −η Ĥ v to first order: the error is of second, and halves twice."""
    model = language(encoders=1, head_tied=False, n_out=3).double()
    x, v = tokens(2, 3), normal(18)
    rates = {n: (n, 1.0 + i) for i, (n, _) in enumerate(model.named_parameters())}
    H = tangent(model, x, groups=rates, outputs="full").total
    before = model(x).flatten()
    (before @ v).backward()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    errors = []
    for eta in (1e-4, 5e-5):
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(start[n] - eta * rates[n][1] * p.grad)
            errors.append(((model(x).flatten() - before) / eta + H @ v).norm().item())
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer": "adam"}, ConfigError, "optimizer 'adam'"),
    ({"outputs": "trace"}, ConfigError, "outputs = 'trace'"),
    ({"memory": "lots"}, ConfigError, "memory = 'lots'"),
    ({"memory": 16}, ConfigError, "at least"),
    ({"groups": {"9.weight": ("a", 1.0)}}, ConfigError, "groups name '9.weight'"),
    ({"groups": {}}, ConfigError, "without a trained parameter"),
    ({"groups": SimpleNamespace(rows=())}, ConfigError, "groups of type SimpleNamespace"),
    ({"epsilon": 1e-8}, ConfigError, "epsilon"),
    ({"epsilon": 1e-8, "optimizer": "adamw"}, ConfigError, "no gradient"),
    ({"gradient": {}, "optimizer": "adamw"}, ConfigError, "a gradient without"),
    ({"output": lambda raw: raw.detach()}, ModelError, "without a gradient"),
    ({"output": lambda raw: raw.sum()}, ModelError, "output of shape"),
    ({"output": lambda raw: "text"}, ModelError, "output of type str"),
]


@pytest.mark.parametrize(("settings", "error", "message"), REFUSED)
def test_what_is_refused(settings: dict[str, Any], error: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with pytest.raises(error, match=message):
        tangent(model, torch.ones(2, 3), **settings)


def test_inputs_that_are_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(DataError, match="one number of samples"):
        tangent(model, (torch.ones(2, 3), torch.ones(3, 3)))
    with pytest.raises(DataError, match="shapes none"):
        tangent(model, ())
    with pytest.raises(ModelError, match="without trained parameters"):
        tangent(nn.ReLU(), torch.ones(2, 3))
    words = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    with pytest.raises(
        ModelError, match=r"Sequential that fails on inputs of .*IndexError"
    ) as wrong:
        tangent(words, torch.tensor([[5]]))
    assert "\n" not in str(wrong.value)
    with pytest.raises(ModelError, match=r"Linear that fails on inputs of .*RuntimeError"):
        tangent(model, torch.ones(2, 4))


def test_a_tangent_sums_its_groups() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    made = Tangent(groups={"a": eye, "b": 2 * eye}, shape=(2,), gradient_size={"a": 1.0, "b": 1.0})
    assert torch.equal(made.total, 3 * eye)
    assert "tensor(" not in f"{made!r}{made}"
    assert str(made).splitlines()[-1].split() == ["total", "3"]
