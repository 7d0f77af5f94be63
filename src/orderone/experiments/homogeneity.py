"""Degrees of homogeneity in all parameters, by the calculus and as measured.

[MRGSS21] Def. 2, 3: f(x; cθ) = c^k f(x; θ), exactly or with an error that vanishes in c. The rows
of Table 1 are functions of parameters of every kind; the encoder of App. D is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.asymptotics import degrees
from orderone.core.generators import generator_for
from orderone.models import LanguageConfig, LanguageTransformer, build
from orderone.probes.scaled import scaled

SIZE = 8
QUARTERS = 4
"""Scales c a doubling."""
EXACT = 1e-14
"""Relative errors below this are rounding."""
STEEP = 12.0
"""A fall faster than c^−12, the last before rounding, is taken for an exponential."""
OCTAVES = 10
"""Doublings of the encoder's parameters: its closest scores take long to part."""

Values = Callable[["Parameters", int], Tensor]


class Parameters(nn.Module):
    """Some of every kind of parameter, and a function of them."""

    def __init__(self, function: Callable[[Parameters], Tensor], *, seed: int) -> None:
        super().__init__()
        draw = generator_for(seed, "homogeneity")
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(SIZE // 2)
        # Between 1 and 2, so that no saturation waits for an entry that is nearly 0.
        self.theta = nn.Parameter(sign * (1 + torch.rand(SIZE, generator=draw).double()))
        self.other = nn.Parameter(1 + torch.rand(SIZE, generator=draw).double())
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE, generator=draw).double())
        self.bias = nn.Parameter(torch.randn(SIZE, generator=draw).double())
        self.gain = nn.Parameter(torch.randn(SIZE, generator=draw).double())
        self.function = function
        self.data = torch.randn(SIZE, generator=draw).double()

    def forward(self) -> Tensor:
        return self.function(self)

    def of_degree(self, k: int) -> Tensor:
        """Numbers of degree k in the parameters."""
        return self.theta.abs() ** (k - 1) * self.theta


def _normed(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return functional.layer_norm(x, x.shape, gain, bias, eps=0.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of Table 1, or of App. C."""

    given: str
    made: str
    values: Values
    degree: Callable[[int], int]
    """Out, by the table, of k in."""
    saturates: bool = False
    any_k: bool = True


TABLE_1: dict[str, Row] = {
    "linear": Row(
        given="k",
        made="k + 1",
        values=lambda p, k: p.weight @ p.of_degree(k),
        degree=lambda k: k + 1,
    ),
    "bias": Row(
        given="1", made="1", values=lambda p, k: p.theta + p.bias, degree=lambda k: 1, any_k=False
    ),
    "affine": Row(
        given="0",
        made="1",
        values=lambda p, k: p.weight @ p.data + p.bias,
        degree=lambda k: 1,
        any_k=False,
    ),
    "layer norm": Row(
        given="k", made="0", values=lambda p, k: _normed(p.of_degree(k)), degree=lambda k: 0
    ),
    "layer norm + affine": Row(
        given="k",
        made="1",
        values=lambda p, k: _normed(p.of_degree(k), p.gain, p.bias),
        degree=lambda k: 1,
    ),
    "ReLU": Row(given="k", made="k", values=lambda p, k: p.of_degree(k).relu(), degree=lambda k: k),
    "sum": Row(
        given="k, k",
        made="k",
        values=lambda p, k: p.of_degree(k) + p.other**k,
        degree=lambda k: k,
    ),
    "product": Row(
        given="k, k + 1",
        made="2k + 1",
        values=lambda p, k: p.of_degree(k) * p.other ** (k + 1),
        degree=lambda k: 2 * k + 1,
    ),
    "sigmoid": Row(
        given="k",
        made="~0",
        values=lambda p, k: p.of_degree(k).sigmoid(),
        degree=lambda k: 0,
        saturates=True,
    ),
    "tanh": Row(
        given="k",
        made="~0",
        values=lambda p, k: p.of_degree(k).tanh(),
        degree=lambda k: 0,
        saturates=True,
    ),
    "softmax": Row(
        given="k",
        made="~0",
        values=lambda p, k: p.of_degree(k).softmax(-1),
        degree=lambda k: 0,
        saturates=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Homogeneity:
    """Degree by the calculus and as measured, and how the error goes with c."""

    degree: int
    """By ``orderone.asymptotics``."""
    exact: bool
    """What the calculus says of the error."""
    beside: str
    slope: float
    """ln₂ ‖f(2cθ)‖/‖f(cθ)‖ at the largest c."""
    errors: Sequence[tuple[float, float]]
    """(c, ‖2^−k f(2cθ) − f(cθ)‖ / ‖f(cθ)‖)."""

    @property
    def fall(self) -> float:
        """p of c^−p as the error fell at last, before it was rounding."""
        return self._powers[-1] if self._powers else math.inf

    @property
    def left(self) -> float:
        """The largest error of the last octave: a score that parts late makes it jump."""
        return max(error for _, error in self.errors[-QUARTERS:])

    @property
    def _powers(self) -> list[float]:
        seen = [(c, e) for c, e in self.errors if e > EXACT]
        return [math.log(e / f) / math.log(d / c) for (c, e), (d, f) in pairwise(seen)]

    @property
    def kind(self) -> str:
        """Exact, or how the error falls."""
        if max(error for _, error in self.errors) <= EXACT:
            return "exact"
        return "exponential" if self.fall > STEEP else "slower"


def homogeneity(model: nn.Module, function: Callable[[], Tensor], *, octaves: int) -> Homogeneity:
    """Degree of ``function``'s value in the model's parameters: by the calculus, and measured."""
    with torch.no_grad():
        scales = [2 ** (j / QUARTERS) for j in range(QUARTERS * (octaves + 1) + 1)]
        values = [_at(model, function, c) for c in scales]
    trace = degrees(_Call(model, function))
    k = 0 if trace.degree is None else int(trace.degree)
    pairs = list(zip(scales, values, values[QUARTERS:], strict=False))
    errors = [(c, float((later / 2.0**k - now).norm() / now.norm())) for c, now, later in pairs]
    _, now, later = pairs[-1]
    return Homogeneity(
        degree=k,
        exact=trace.exact,
        beside=", ".join(trace.beside),
        slope=math.log2(float(later.norm() / now.norm())),
        errors=errors,
    )


class _Call(nn.Module):
    """A function of a model's parameters as a model, whose forward it is."""

    def __init__(self, model: nn.Module, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.inner = model
        self.function = function

    def forward(self) -> Tensor:
        return self.function()


def _at(model: nn.Module, function: Callable[[], Tensor], c: float) -> Tensor:
    with scaled(model, c):
        return function().clone()


def encoder(config: LanguageConfig, *, epsilon: float, seed: int) -> LanguageTransformer:
    """The stack of [MRGSS21] App. D with ε in its layer norms; gains near 1, biases off 0.

    Biases begin at 0, which would hide them: where the configuration has any, all are drawn.
    """
    model = build(config, seed=seed)
    assert isinstance(model, LanguageTransformer)
    model = model.double().eval()
    draw = generator_for(seed, "gains")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim != 1:
                continue
            noise = 0.1 * torch.randn(parameter.shape, generator=draw).double()
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + noise)
            else:
                parameter.copy_(noise if config.bias else torch.zeros_like(noise))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon
    return model
