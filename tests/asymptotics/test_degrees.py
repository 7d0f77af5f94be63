"""[MRGSS21] Table 1, Euler's identity, and what has no limit."""

from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn import functional

from orderone.asymptotics import Graded, degrees, graded_parameters, saturated
from orderone.core.errors import ConfigError, ModelError
from tests.asymptotics.networks import error_at, limits, randomized, slope


class Applied(nn.Module):
    """A function of one vector of parameters."""

    def __init__(self, function, size: int = 6) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.linspace(-1.0, 1.5, size, dtype=torch.float64))
        self.other = nn.Parameter(torch.linspace(0.4, 2.0, size, dtype=torch.float64))
        self.function = function

    def forward(self):
        return self.function(self.theta, self.other)


def power(theta, k):
    """Of degree k: the rows of Table 1 are for any."""
    return theta.abs() ** (k - 1) * theta


def normed(x, gain=None, bias=None):
    return functional.layer_norm(x, x.shape, gain, bias)


X = torch.linspace(0.3, 1.2, 6, dtype=torch.float64)
TABLE_1 = {
    "linear": (lambda t, o: (power(t, 2)[None] @ torch.outer(o, X))[0], 3),
    "bias": (lambda t, o: t, 1),
    "affine": (lambda t, o: X * o + t, 1),
    "layer norm": (lambda t, o: normed(power(t, 3)), 0),
    "layer norm + affine": (lambda t, o: normed(power(t, 3), o, t), 1),
    "ReLU": (lambda t, o: power(t, 3).relu(), 3),
    "sum": (lambda t, o: power(t, 2) + power(o, 2), 2),
    "product": (lambda t, o: power(t, 2) * power(o, 3), 5),
    "sigmoid": (lambda t, o: power(t, 2).sigmoid(), 0),
    "tanh": (lambda t, o: power(t, 2).tanh(), 0),
    "softmax": (lambda t, o: power(t, 2).softmax(-1), 0),
    # Beside the table: what models have today.
    "GELU": (lambda t, o: functional.gelu(power(t, 2)), 2),
    "tanh-GELU": (lambda t, o: functional.gelu(power(t, 2), approximate="tanh"), 2),
    "SiLU": (lambda t, o: functional.silu(power(t, 2)), 2),
    "RMSNorm by hand": (lambda t, o: t * (t.pow(2).mean() + 1e-6).rsqrt() * o, 1),
    "RMSNorm": (lambda t, o: functional.rms_norm(t, t.shape, o), 1),
    "layer norm by hand": (lambda t, o: (t - t.mean()) / (t.var() + 1e-5).sqrt(), 0),
    "cosine": (lambda t, o: functional.normalize(power(t, 2), dim=0) @ o, 1),
    "inverse": (lambda t, o: 1 / o, -1),
    "GELU of the small": (lambda t, o: functional.gelu(t / o.square()), -1),
    "softmax of the small": (lambda t, o: (t / o.square()).softmax(-1), 0),
    "softmax by hand": (lambda t, o: (t - t.max()).exp() / (t - t.max()).exp().sum(), 0),
    "maximum": (lambda t, o: torch.maximum(t * o, t), 2),
    "clamp": (lambda t, o: (t * o).clamp(min=-0.5), 2),
}


@pytest.mark.parametrize("row", list(TABLE_1))
def test_degree_and_limit_of_every_row(row):
    function, degree = TABLE_1[row]
    model = Applied(function)
    found, _ = limits(model, lambda m: [m()])
    assert found[0].degree == degree
    last = error_at(model, lambda m: [m()], found, 1e5)
    assert last < 1e-4
    if found[0].dropped:
        first = error_at(model, lambda m: [m()], found, 3.0)
        assert last < first or last < 1e-12
    else:
        assert error_at(model, lambda m: [m()], found, 3.0) < 1e-12


def test_a_root_halves_the_degree():
    assert saturated(Applied(lambda t, o: o.sqrt())).degree == Fraction(1, 2)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_eulers_identity_where_the_degree_is_exact(layers):
    """θ·∇f = k f of a ReLU network without biases: degree k = number of layers."""
    stack = [m for _ in range(layers) for m in (nn.Linear(5, 5, bias=False), nn.ReLU())]
    model = randomized(nn.Sequential(*stack[:-1]))
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    trace = degrees(model, x)
    assert trace.exact
    assert trace.degree == layers
    f = model(x).sum()
    assert radial(model, f) == pytest.approx(layers * float(f.detach()), rel=1e-12)


def test_eulers_identity_is_approached_where_attention_saturates():
    """θ·∇f − k f of attention and layer norm falls with ε/c², the softmax being decided."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x):
            weights = (self.q(x) @ self.k(x).mT).softmax(-1)
            return self.v(x) + functional.layer_norm(weights @ self.v(x), (4,)) @ self.v.weight

    model = randomized(Branch(), std=1.0)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = float(degrees(model, x).degree)
    assert k == 1
    errors = {}
    for c in (30.0, 100.0, 300.0):
        scaled = randomized(Branch(), std=c)
        value = scaled(x).norm()
        errors[c] = abs(radial(scaled, value) / float(value.detach()) - k)
    assert slope(errors) == pytest.approx(-2, abs=0.1)


def radial(model, f) -> float:
    """θ·∇f."""
    model.zero_grad()
    f.backward()
    return float(sum((p.detach() * p.grad).sum() for p in model.parameters()))


def test_an_exact_zero_has_every_degree_and_loses_every_sum():
    zero = Applied(lambda t, o: (t * o) * 0.0 + t)
    found = saturated(zero)
    assert found.degree == 1
    assert torch.equal(found.lead, zero.theta.detach())


def test_leading_coefficients_that_cancel_are_refused():
    def cancelling(t, o):
        large = t * o + t  # degree 2, and something of degree 1 beside it
        return large - t * o

    with pytest.raises(ModelError, match=r"degree 2 that cancel to 0.*'?sub"):
        saturated(Applied(cancelling))


def test_entries_that_became_0_win_no_sum():
    """The slice's degree is 1, which the one degree of its tensor hides."""
    with pytest.raises(ModelError, match="degree 2 that cancel to 0"):
        saturated(Applied(lambda t, o: torch.cat([t, t * o])[:6] + o))


def test_a_constant_row_is_not_normalised():
    with pytest.raises(ModelError, match="native_layer_norm"):
        saturated(Applied(lambda t, o: normed((o.sum() * o.sum()).expand(6) + t)))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda t, o: torch.special.gammaln(o), "aten.lgamma"),
        (lambda t, o: torch.linalg.inv(torch.diag(o)), "aten"),
    ],
)
def test_an_operation_without_a_rule_is_refused_by_name(function, name):
    with pytest.raises(ModelError, match=f"operation '{name}.* which has no rule"):
        saturated(Applied(function))


@pytest.mark.parametrize(
    "function",
    [lambda t, o: o.exp(), lambda t, o: o.log(), lambda t, o: o.sin(), lambda t, o: o.sum().item()],
)
def test_what_has_no_limit_is_refused(function):
    with pytest.raises(ModelError, match="in the model"):
        saturated(Applied(function))


def test_bad_parameters_are_refused():
    model = Applied(lambda t, o: t)
    with pytest.raises(ConfigError, match="'thetta'"):
        saturated(model, scaled=["thetta"])
    with pytest.raises(ModelError, match="without scaled parameters"):
        saturated(model, scaled=lambda name: False)
    with torch.no_grad():
        model.theta[0] = torch.nan
    with pytest.raises(ModelError, match="'theta' with NaN"):
        saturated(model)


def test_control_flow_on_what_is_bounded():
    def branching(t, o):
        shares = t.softmax(-1)
        return t if shares.sum().item() > 0.5 and bool((shares >= 0).all()) else o

    assert saturated(Applied(branching)).source == "theta"


def test_comparisons_follow_what_leads():
    """c²·0.4 > c·10 in the end."""
    found = saturated(Applied(lambda t, o: torch.where(o * o > o * 10, t, o)))
    torch.testing.assert_close(found.lead, Applied(None).theta.detach())


IN_PLACE = {
    "sum": lambda t, o: (t * o).add_(t),
    "smaller += larger": lambda t, o: t.clone().add_(t * o),
    "masked": lambda t, o: (t * o).masked_fill_(t > 0, 0.0),
    "assignment": lambda t, o: assigned(t * o, t),
    "blank": lambda t, o: assigned(t.new_zeros(6), t * o),
    "through a view": lambda t, o: through_view(t * o),
}


def assigned(into, value):
    into[2:4] = value[2:4]
    return into


def through_view(x):
    x.view(2, 3)[0].mul_(2)
    return x


@pytest.mark.parametrize("name", list(IN_PLACE))
def test_writing_in_place(name):
    model = Applied(IN_PLACE[name])
    found, _ = limits(model, lambda m: [m()])
    assert found[0].degree == 2
    assert error_at(model, lambda m: [m()], found, 1e6) < 1e-5


def test_a_write_that_needs_two_degrees_in_one_memory_is_refused():
    with pytest.raises(ModelError, match="degree 2 written into memory of another degree"):
        saturated(Applied(lambda t, o: assigned(torch.zeros(6, dtype=t.dtype), t * o)))
    with pytest.raises(ModelError, match="written into memory of another degree"):
        saturated(Applied(lambda t, o: assigned(t.clone(), t * o)))


def test_entries_of_different_degree_share_the_largest():
    found = saturated(Applied(lambda t, o: torch.cat([t, t * o])))
    assert found.degree == 2
    assert not found.lead[:6].any()
    assert found.lead[6:].any()
    assert "lower degree" in found.dropped


def test_torchs_own_layers():
    """nn.TransformerEncoderLayer and an LSTM: masks, fast paths, gates written in place."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=generator)
    layer = randomized(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
    found, _ = limits(layer, lambda m: [m(x, is_causal=True, src_mask=future(5))])
    assert error_at(layer, lambda m: [m(x, is_causal=True, src_mask=future(5))], found, 1e5) < 1e-4
    lstm = randomized(nn.LSTM(16, 4), seed=2)
    found, _ = limits(lstm, lambda m: [m(x)[0]])
    assert found[0].degree == 0
    assert error_at(lstm, lambda m: [m(x)[0]], found, 1e5) < 1e-4


def future(t):
    return nn.Transformer.generate_square_subsequent_mask(t, dtype=torch.float64)


def test_graded_values_print_and_tell_their_source():
    found = saturated(Applied(lambda t, o: t * o))
    assert isinstance(found, Graded)
    assert "degree=2" in repr(found)
    with graded_parameters(Applied(lambda t, o: t * o)) as trace:
        pass
    assert trace.degree is None
