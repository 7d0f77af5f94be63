"""Operations one at a time and in random small graphs, against f(x; cθ): right, or refused."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from orderone.asymptotics import degrees, graded_parameters, saturated
from orderone.asymptotics.attention import rounding
from orderone.core.errors import ModelError

DOUBLE = torch.float64


class Vectors(nn.Module):
    """Parameters of either sign, positive, negative and 0, matrices and data, and a function."""

    def __init__(self, function) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)

        def normal(*shape):
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=DOUBLE))

        self.t, self.W, self.V = normal(6), normal(6, 6), normal(6, 6)
        self.o = nn.Parameter(torch.linspace(0.5, 1.5, 6, dtype=DOUBLE))
        self.n = nn.Parameter(torch.linspace(-0.4, -1.3, 6, dtype=DOUBLE))
        self.z = nn.Parameter(torch.zeros(6, dtype=DOUBLE))
        self.register_buffer("x", torch.randn(6, generator=generator, dtype=DOUBLE))
        self.function = function

    def forward(self):
        return self.function(self)

    @torch.no_grad()
    def at(self, c: float):
        model = Vectors(self.function)
        for parameter in model.parameters():
            parameter.mul_(c)
        return model()


GIVEN = {
    "of degree 2": lambda m: m.t * m.o,
    "of degree 2 and 1": lambda m: m.t * m.o + m.t,
    "negative": lambda m: m.n * m.o + m.n,
    "of degree -1": lambda m: m.t / m.o.square(),
    "of degree 0": lambda m: (m.t * m.o).softmax(-1),
    "0": lambda m: m.z * m.t,
    "of two degrees": lambda m: torch.cat([m.t[:3], (m.t * m.o)[3:]]),
}
TWO = torch.tensor([0, 1])
OPERATIONS = {
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp min": lambda x: x.clamp(min=-0.5),
    "clamp max": lambda x: x.abs().clamp(max=0.3),
    "relu6": functional.relu6,
    "relu6 in place": lambda x: functional.relu6(x.clone(), inplace=True),
    "where none": lambda x: torch.where(torch.arange(6) > 9, x, 3.0),
    "where larger": lambda x: torch.where(x > 0.3, x, -1.0),
    "minimum": lambda x: torch.minimum(x.abs(), torch.tensor(0.3, dtype=DOUBLE)),
    "step": lambda x: (x > 0).to(DOUBLE),
    "truth": lambda x: x.bool().to(DOUBLE),
    "sign": torch.sign,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "ELU": functional.elu,
    "SELU": functional.selu,
    "CELU": functional.celu,
    "log of sigmoid": functional.logsigmoid,
    "log of softmax": lambda x: functional.log_softmax(x, -1),
    "log by hand": lambda x: x.softmax(-1).log(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logaddexp": lambda x: torch.logaddexp(x, x.roll(1)),
    "GLU": functional.glu,
    "PReLU": lambda x: functional.prelu(x[None], torch.tensor([0.3], dtype=DOUBLE)),
    "threshold": lambda x: functional.threshold(x, 0.1, 7.0),
    "pad": lambda x: functional.pad(x, (1, 1), value=5.0),
    "scatter": lambda x: x.scatter(0, TWO, x.flip(0)[:2] * x.abs()[:2]),
    "scatter_add": lambda x: x.scatter_add(0, TWO, x[:2] * x[:2].abs()),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]),
    "index_put": lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "argmax": lambda x: functional.one_hot(x.argmax(), 6).to(DOUBLE),
    "topk": lambda x: functional.one_hot(x.topk(2).indices, 6).to(DOUBLE),
    "norm of order 0": lambda x: torch.linalg.vector_norm(x, 0),
    "1 times": lambda x: unchanged(x, lambda y: (y * 1).add_(5 * y)),
    "endless clamp": lambda x: unchanged(x, lambda y: y.clamp(min=torch.finfo(DOUBLE).min).mul_(3)),
    "to a whole number": lambda x: (x.sigmoid() * 2).long().to(DOUBLE),
    "a number": lambda x: x * (1 + x.sigmoid().sum().item()),
    "layer norm by hand": lambda x: (x - x.mean()) / (x.var() + 1e-5).sqrt(),
    "instance norm": lambda x: functional.instance_norm(x.view(1, 1, -1)),
    "weight norm": lambda x: torch._weight_norm(x.view(2, 3), x.view(2, 3)[:, :1], 0),
}


def unchanged(x, function):
    """x, of which a function changed a copy."""
    function(x)
    return x


def distance(model, found, c: float) -> float:
    """Of c^−k f(x; cθ) from its limit, relative to it where it is not 0."""
    value, lead = model.at(c), getattr(found, "lead", found)
    k = float(getattr(found, "degree", 0))
    return float((value / c**k - lead).norm() / (lead.norm() if lead.any() else 1.0))


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("given", list(GIVEN))
def test_an_operation_is_right_or_refused(name, given):
    """No degree is one that f(x; cθ) does not have, and no exact one that only its limit has."""
    model = Vectors(lambda m: OPERATIONS[name](GIVEN[given](m)))
    try:
        with graded_parameters(model) as trace:
            found = model()
    except ModelError:
        return
    assert distance(model, found, 1e5) < 1e-3
    assert bool(getattr(found, "lead", found).any()) or may_vanish(model, trace)
    if trace.output and trace.exact:
        for c in (0.01, 0.3, 7.0):
            assert distance(model, found, c) < 1e-9


def may_vanish(model, trace) -> bool:
    """0 for certain, or said to be no more than a bound."""
    return not bool(model.at(1e5).any()) or bool(trace.output and trace.output[0].vanishes)


CARRIED = {
    "relu6": 0,
    "clamp": 0,
    "clamp max": 0,
    "minimum": 0,
    "where none": 0,
    "ELU": 2,
    "SELU": 2,
    "CELU": 2,
    "log of sigmoid": 2,
    "logsumexp": 2,
    "GLU": 2,
    "scatter_add": 4,
    "index_add": 2,
    "pad": 2,
    "instance norm": 0,
    "weight norm": 2,
}


@pytest.mark.parametrize("name", list(CARRIED))
def test_degrees_of_operations(name):
    model = Vectors(lambda m: OPERATIONS[name](m.t * m.o))
    found = saturated(model)
    assert getattr(found, "degree", 0) == CARRIED[name]


def test_what_is_certainly_negative_ends_at_the_lower_bound():
    found = saturated(Vectors(lambda m: functional.elu(m.n * m.o, alpha=0.7)))
    assert found.degree == 0
    torch.testing.assert_close(found.lead, torch.full((6,), -0.7, dtype=DOUBLE))


def test_a_product_with_0_is_0_whatever_else_is_lost():
    """A last projection of zeros, as models begin with, leaves the residual stream alone."""

    def block(m):
        hidden = (m.W @ m.t + m.t).relu()  # of degree 2 and 1
        return m.t + (m.W * m.z) @ hidden

    found = saturated(Vectors(block))
    assert found.degree == 1
    assert torch.equal(found.lead, Vectors(block).t.detach())


def test_a_choice_by_degree_is_not_exact():
    """max(t o, 1/2) = t o only once c is large."""
    half = torch.tensor(0.5, dtype=DOUBLE)
    for function in (
        lambda m: torch.maximum(m.o * m.o, half),
        lambda m: (m.o * m.o).clamp(min=0.5),
        lambda m: torch.where(m.t > 0.5, m.t, 0.0),
        lambda m: m.t * (m.o > m.t.square()),
    ):
        trace = degrees(Vectors(function))
        assert not trace.exact
        assert trace.beside == ["saturation"]
    assert degrees(Vectors(lambda m: torch.where(m.t > 0, m.t, -m.o))).exact
    assert degrees(Vectors(lambda m: torch.maximum(m.t, m.o))).exact


def test_orders_that_lower_degrees_decide_are_refused():
    """Equal leading coefficients, t_i apart in the degree below."""
    for function in (
        lambda m: alike(m).argmax(),
        lambda m: alike(m).argsort(),
        lambda m: alike(m).topk(2).indices,
        lambda m: alike(m).sort().indices,
        lambda m: alike(m).argmin(),
    ):
        with pytest.raises(ModelError, match="lead alike"):
            saturated(Vectors(function))


def alike(m):
    return m.o.sum() ** 2 * torch.ones(6, dtype=DOUBLE) + m.t


def test_a_comparison_of_what_leads_alike_asks_what_stands_beside_it():
    def of_degree_1(m):
        return ((m.t * m.o + m.t) > m.t * m.o).to(DOUBLE)

    assert torch.equal(saturated(Vectors(of_degree_1)), Vectors(of_degree_1).at(1e3))
    with pytest.raises(ModelError, match="whose leading coefficient is 0, at gt"):
        saturated(Vectors(lambda m: ((m.t * m.o + m.t) * m.o) > m.t * m.o * m.o))


def test_no_rounding_is_divided_by():
    """t o 3 / 3 − t o is rounding, and beside it is t."""
    with pytest.raises(ModelError, match="cancel to 0"):
        saturated(Vectors(lambda m: ((m.t * m.o + m.t) * 3) / 3 - m.t * m.o))
    with pytest.raises(ModelError, match="division by"):
        saturated(
            Vectors(
                lambda m: m.t / (m.o.sum() ** 2 * torch.full((6,), 0.1, dtype=DOUBLE) + m.t).var()
            )
        )


def test_no_rounding_is_a_sum():
    """What is left of a centred value, and of t beside it, is the sum of t."""
    with pytest.raises(ModelError, match="cancel to 0 in a sum, at sum"):
        saturated(Vectors(lambda m: (m.t * m.o - (m.t * m.o).mean() + m.t).sum()))


def test_a_number_beside_0_is_there():
    """0 c + 5 is 5, and no ε."""
    wide = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=DOUBLE)
    model = Vectors(lambda m: (m.t * wide + 5.0).sigmoid())
    torch.testing.assert_close(saturated(model).lead, model.at(1e5).detach())


def test_epsilon_is_no_divisor_but_of_what_vanishes_with_it():
    """o / (0 + ε) is of a higher degree than any quotient by what grows; 0 / (0 + ε) is 0."""
    wide = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=DOUBLE)
    with pytest.raises(ModelError, match="beside a constant"):
        saturated(Vectors(lambda m: m.n / (m.t.square() * wide + 1e-6)))
    found = saturated(Vectors(lambda m: m.t * wide * ((m.t * wide).square() + 1e-6).rsqrt()))
    torch.testing.assert_close(found.lead, Vectors(None).t.detach().sign() * wide)


def test_numbers_as_low_as_masks_are_refused():
    with pytest.raises(ModelError, match=r"as low as -1.9e\+31, which cannot be told from masks"):
        saturated(Vectors(lambda m: m.n * (m.o * 1e31)))


def test_a_logarithm_of_what_vanishes_is_refused():
    with pytest.raises(ModelError, match="5 numbers that vanish"):
        saturated(Vectors(lambda m: (m.t * m.o).softmax(-1).log()))


def test_a_degree_that_is_only_a_bound_is_said():
    trace = degrees(Vectors(lambda m: torch.cat([m.t, m.t * m.o])[:6]))
    assert trace.output[0].vanishes
    assert not degrees(Vectors(lambda m: m.t)).output[0].vanishes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_ties_only_what_is_equal(dtype):
    """Scores a hundredth apart are no tie, and a row with one large entry is no constant."""
    assert rounding(dtype) < 1e-2

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.tensor([1.0, 0.98, 0.9, 1.0], dtype=dtype))
            row = torch.zeros(4096, dtype=dtype)
            row[7] = 1.0
            self.row = nn.Parameter(row)

        def forward(self):
            return self.scores.softmax(-1), functional.rms_norm(self.row, (4096,)), normed(self.row)

    def normed(row):
        return functional.layer_norm(row, (4096,))

    weights, row, centred = saturated(Half())
    assert centred.lead[7] == 64.0
    assert weights.lead.tolist() == [0.5, 0.0, 0.0, 0.5]
    assert row.lead[7] == 64.0
    assert int(row.lead.count_nonzero()) == 1


FUNCTIONS = [
    lambda m, a, b: a + b,
    lambda m, a, b: a - b,
    lambda m, a, b: a * b,
    lambda m, a, b: functional.linear(a, m.W),
    lambda m, a, b: functional.linear(a, m.V, m.t),
    lambda m, a, b: functional.linear(a, m.V, b),
    lambda m, a, b: a.relu(),
    lambda m, a, b: functional.gelu(a),
    lambda m, a, b: functional.silu(a),
    lambda m, a, b: a.tanh(),
    lambda m, a, b: a.sigmoid(),
    lambda m, a, b: a.softmax(-1),
    lambda m, a, b: functional.layer_norm(a, (6,)),
    lambda m, a, b: functional.layer_norm(a, (6,), m.o, m.t),
    lambda m, a, b: functional.rms_norm(a, (6,), eps=1e-5),
    lambda m, a, b: a / (b.abs() + 1e-3),
    lambda m, a, b: torch.maximum(a, b),
    lambda m, a, b: torch.where(a > b, a, b * 2),
    lambda m, a, b: torch.cat([a[:3], b[3:]]),
    lambda m, a, b: a.roll(1),
    lambda m, a, b: a.clamp(-0.5, 1.5),
    lambda m, a, b: a.clamp(min=-0.3),
    lambda m, a, b: a * m.z,
    lambda m, a, b: functional.softplus(a),
    lambda m, a, b: functional.elu(a),
    lambda m, a, b: a * 0.5 - 1,
    lambda m, a, b: torch.outer(a, b).softmax(-1) @ a,
    lambda m, a, b: (torch.outer(a, b) + hidden_future()).softmax(-1) @ b,
    lambda m, a, b: assigned(a, b),
    lambda m, a, b: (a * 1).add_(b),
    lambda m, a, b: a - a.logsumexp(0),
    lambda m, a, b: a * (b > 0.4),
    lambda m, a, b: a.masked_fill(b > 0, 1.5),
    lambda m, a, b: functional.pad(a[:4], (1, 1), value=2.0),
]


def hidden_future():
    return torch.full((6, 6), -math.inf, dtype=DOUBLE).triu(1)


def assigned(a, b):
    a = a.clone()
    a[1:3] = b[1:3]
    return a


def graph(seed: int):
    """Three to eight functions of parameters, data and one another, drawn at random."""
    draw = random.Random(seed)
    steps = [
        (draw.choice(FUNCTIONS), draw.random(), draw.random()) for _ in range(draw.randint(3, 8))
    ]

    def function(m):
        made = [m.t, m.o, m.n, m.x, m.x.flip(0)]
        for step, first, second in steps:
            a, b = (made[int(share * len(made))] for share in (first, second))
            made.append(step(m, a, b))
        return made[-1]

    return function


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_are_right_or_refused(seed):
    """And where the degree is exact, θ·∇f = k f."""
    model = Vectors(graph(seed))
    try:
        with graded_parameters(model) as trace:
            found = model()
    except ModelError:
        return
    if not trace.output or "tie" in trace.beside or found.lead.norm() < 1e-12:
        return
    assert distance(model, found, 1e6) < 1e-3
    if trace.exact:
        f = (model() * torch.linspace(1, 2, found.lead.shape[-1], dtype=DOUBLE)).sum()
        f.backward()
        radial = sum((p.detach() * p.grad).sum() for p in model.parameters() if p.grad is not None)
        torch.testing.assert_close(radial, float(found.degree) * f.detach(), rtol=1e-9, atol=1e-9)
