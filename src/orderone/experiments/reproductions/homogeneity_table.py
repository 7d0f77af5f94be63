"""Table 1's degrees of homogeneity hold, and make a bias-free branch encoder of degree 1.

Source   [MRGSS21] §5.2, Table 1, App. C (Lemmas 2–8, Prop. 3), App. D
Expect   every row: the degree of the table by the calculus of degrees, and as the slope of
         ln ‖f(x; cθ)‖ on ln c within 0.01; the error exactly 0 for rows without saturation, and
         falling faster than c^−12 for sigmoid, tanh, softmax and the encoder
Cost     smoke 2 s, laptop 30 s, paper 5 min on one core
Differs  weights are random. The error is taken relative to c^k: Definition 3 bounds the absolute
         error for all c at once, which a degree above 0 allows to an exact network alone. ε of the
         layer norms is 0, as in the proofs; beside it the encoder with ε and with biases
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.asymptotics import degrees
from orderone.core.generators import generator_for
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.slope import exponent
from orderone.models import LanguageConfig, LanguageTransformer, build
from orderone.report.charts import lines
from orderone.report.page import Section

PUBLISHED = (
    "linear k → k+1, bias 1 → 1, affine 0 → 1, layer norm k → 0, with affine k → 1, ReLU k → k, "
    "sum (k, k) → k, product k₁ + k₂; sigmoid, tanh, softmax → ~0; encoder without biases ~1"
)
SIZE = 8
QUARTERS = 4
"""Scales c a doubling."""
EXACT = 1e-14
"""Relative errors below this are rounding."""
STEEP = 12.0
"""A fall faster than c^−12, the last before rounding, is taken for an exponential."""
TOLERANCE = 0.01
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
        seen = [(c, e) for c, e in self.errors if e > EXACT]
        if len(seen) < 2:
            return math.inf
        (c, e), (d, f) = seen[-2:]
        return math.log(e / f) / math.log(d / c)

    @property
    def kind(self) -> str:
        """Exact, or how the error falls."""
        if max(error for _, error in self.errors) <= EXACT:
            return "exact"
        return "exponential" if self.fall > STEEP else f"c^−{self.fall:.2f}"


def reproduce(stage: Stage) -> Outcome:
    """Every row at several k; then the encoder, with what its proof leaves out beside it."""
    ks = stage.pick(smoke=(1, 2), laptop=(1, 2, 3, 4), paper=(1, 2, 3, 4))
    found = dict(_rows(ks, seed=stage.seed))
    total = len(found) + len(ENCODERS)
    stage.progress(len(found), total)
    encoders: dict[str, Homogeneity] = {}
    for name, (epsilon, bias) in ENCODERS.items():
        encoders[name] = _encoder(stage, epsilon=epsilon, bias=bias)
        stage.progress(len(found) + len(encoders), total)
    wrong = [
        f"{name} at k = {k}"
        for (name, k), each in found.items()
        if not _as_published(each, TABLE_1[name].degree(k), saturates=TABLE_1[name].saturates)
    ]
    proved = encoders[PROVED]
    wrong += [] if _as_published(proved, 1, saturates=True) else [PROVED]
    _record(stage, found, encoders)
    cases = len(found) + 1
    return Outcome(
        measured=(
            f"{cases - len(wrong)} of {cases} cases as published; the encoder's degree "
            f"{proved.slope:.3f}, its error {_fall_in_words(proved)}"
        ),
        held=not wrong,
        why=_why(encoders, wrong),
        sections=[_picture(found, encoders), _table(found), _encoder_table(encoders)],
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("random weights; the encoder of 12 layers and d 768 of the small models")


PROVED = "encoder without biases"
ENCODERS: dict[str, tuple[float, bool]] = {
    PROVED: (0.0, False),
    "encoder with ε = 1e−5": (1e-5, False),
    "encoder with biases": (0.0, True),
}
"""(ε, biases in attention and MLP)."""


def _as_published(found: Homogeneity, degree: int, *, saturates: bool) -> bool:
    exact = found.kind == "exact" and found.exact
    vanishing = found.kind == "exponential" and found.beside == "saturation"
    agrees = found.degree == degree and abs(found.slope - degree) <= TOLERANCE
    return agrees and (vanishing if saturates else exact)


def _rows(ks: Sequence[int], *, seed: int) -> Iterator[tuple[tuple[str, int], Homogeneity]]:
    for name, row in TABLE_1.items():
        for k in ks if row.any_k else ks[:1]:
            model = Parameters(lambda p, row=row, k=k: row.values(p, k), seed=seed)
            yield (name, k), homogeneity(model, model, octaves=6)


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
    with _multiplied(model, c):
        return function().clone()


@contextmanager
def _multiplied(model: nn.Module, c: float) -> Generator[None]:
    """The model with parameters cθ; afterwards it has the very θ that it had."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        for parameter in model.parameters():
            parameter.mul_(c)
        yield
    finally:
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)


def _encoder(stage: Stage, *, epsilon: float, bias: bool) -> Homogeneity:
    """The stack's last hidden state, [MRGSS21] App. D: gains yes, biases only where asked for."""
    n, H, layers, T = stage.pick(
        smoke=(32, 4, 2, 8), laptop=(256, 8, 6, 16), paper=(768, 12, 12, 16)
    )
    config = LanguageConfig(
        n=n,
        H=H,
        encoders=layers,
        M=2,
        T=T,
        n_vocab=4 * T,
        placement="branch",
        activation="relu",
        causal=False,
        affine=True,
        bias=bias,
        init_std=n**-0.5,
        head_tied=False,
    )
    model = build(config, seed=stage.seed)
    assert isinstance(model, LanguageTransformer)
    model = model.double().eval()
    draw = generator_for(stage.seed, "tokens")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases begin at 0, which would hide them
                gain = name.endswith("norm.weight")
                noise = torch.randn(parameter.shape, generator=draw).double()
                parameter.copy_(
                    1.0 + 0.1 * noise if gain else (0.1 * noise if bias else 0.0 * noise)
                )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon
    tokens = torch.randint(4 * T, (2, T), generator=draw)
    return homogeneity(model, lambda: model.trace(tokens).hidden[-1], octaves=OCTAVES)


def _record(
    stage: Stage,
    found: dict[tuple[str, int], Homogeneity],
    encoders: dict[str, Homogeneity],
) -> None:
    named = {(f"{name}", str(k)): each for (name, k), each in found.items()}
    for (name, k), each in {**named, **{(n, "1"): e for n, e in encoders.items()}}.items():
        stage.record("degree by calculus", each.degree, component=name, k=k)
        stage.record("degree measured", each.slope, component=name, k=k)
        for c, error in each.errors:
            stage.record("error", error, component=name, k=k, c=f"{c:.4g}")


def _fall_in_words(found: Homogeneity) -> str:
    if found.kind == "exponential":
        return f"falling as steeply as c^−{found.fall:.0f}, exponentially"
    return "0" if found.kind == "exact" else f"falling as {found.kind}"


def _why(encoders: dict[str, Homogeneity], wrong: list[str]) -> str:
    said = [f"Not as published: {', '.join(wrong)}."] if wrong else []
    proved, with_epsilon, biased = encoders.values()
    at = next((c for c, error in proved.errors if error <= EXACT), None)
    said.append("What the proof leaves out changes the error's kind, not the degree:")
    if at is not None:
        left = dict(with_epsilon.errors)[at]
        said.append(
            f"with ε = 1e−5 in the layer norms {left:.0e} of the output is left at c = {at:.0f}, "
            "where without it nothing is,"
        )
    tail = biased.errors[-2 * QUARTERS :]
    power = exponent([c for c, _ in tail], [error for _, error in tail])
    said.append(f"and with biases the error falls as c^{power:.2f} only.".replace("-", "−"))
    return " ".join(said)


def _picture(
    found: dict[tuple[str, int], Homogeneity], encoders: dict[str, Homogeneity]
) -> Section:
    # The encoder of the proof comes last, on top: the others part from it.
    drawn = {name: found[name, 1] for name, row in TABLE_1.items() if row.saturates}
    rows = [
        {"c": c, "error": error, "what": name}
        for name, each in {**drawn, **dict(reversed(encoders.items()))}.items()
        for c, error in each.errors
        if error > EXACT
    ]
    return Section(
        heading="Error of homogeneity",
        text="A power law is a straight line here; an exponential bends down without end.",
        chart=lines(
            pl.DataFrame(rows),
            x=("c", "factor c on all parameters"),
            y=("error", "‖f(2cθ)/2ᵏ − f(cθ)‖ / ‖f(cθ)‖"),
            colour=("what", "network"),
            title="How far from homogeneous",
            subtitle="sigmoid, tanh and softmax of a vector of degree 1; float64",
            log_x=True,
            log_y=True,
            points=True,
        ),
        alternative="Relative error of homogeneity against the factor on all parameters",
    )


def _table(found: dict[tuple[str, int], Homogeneity]) -> Section:
    rows = [
        (
            name,
            TABLE_1[name].given,
            TABLE_1[name].made,
            str(k),
            str(each.degree),
            f"{each.slope:.4f}",
            each.kind,
        )
        for (name, k), each in found.items()
    ]
    return Section(
        heading="Every row",
        columns=("component", "in", "out, published", "k", "by calculus", "measured", "error"),
        rows=rows,
    )


def _encoder_table(encoders: dict[str, Homogeneity]) -> Section:
    rows = [
        (name, str(each.degree), f"{each.slope:.4f}", each.kind, each.beside or "nothing")
        for name, each in encoders.items()
    ]
    return Section(
        heading="The encoder",
        columns=("network", "by calculus", "measured", "error", "beside the leading term"),
        rows=rows,
    )
