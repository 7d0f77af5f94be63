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

from collections.abc import Iterator, Sequence

import polars as pl
import torch

from orderone.core.generators import generator_for
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.homogeneity import (
    EXACT,
    OCTAVES,
    TABLE_1,
    Homogeneity,
    Parameters,
    encoder,
    homogeneity,
)
from orderone.experiments.reproduction import Outcome, Stage
from orderone.models import LanguageConfig
from orderone.report.charts import lines
from orderone.report.page import Section

PUBLISHED = (
    "linear k → k+1, bias 1 → 1, affine 0 → 1, layer norm k → 0, with affine k → 1, ReLU k → k, "
    "sum (k, k) → k, product k₁ + k₂; sigmoid, tanh, softmax → ~0; encoder without biases ~1"
)
TOLERANCE = 0.01
PROVED = "encoder without biases"
ENCODERS: dict[str, tuple[float, bool]] = {
    PROVED: (0.0, False),
    "encoder with ε = 1e−5": (1e-5, False),
    "encoder with biases": (0.0, True),
}
"""(ε, biases in attention and MLP)."""

Found = dict[tuple[str, int], Homogeneity]


def reproduce(stage: Stage) -> Outcome:
    """Every row at several k; then the encoder, with what its proof leaves out beside it."""
    ks = stage.pick(smoke=(1, 2), laptop=(1, 2, 3, 4), paper=(1, 2, 3, 4))
    found = dict(_rows(ks, seed=stage.seed))
    total = len(found) + len(ENCODERS)
    encoders: dict[str, Homogeneity] = {}
    for done, (name, (epsilon, bias)) in enumerate(ENCODERS.items()):
        stage.progress(len(found) + done, total)
        encoders[name] = _encoder(stage, epsilon=epsilon, bias=bias)
    stage.progress(total, total)
    _record(stage, found, encoders)
    wrong = [
        f"{name} at k = {k}"
        for (name, k), each in found.items()
        if not _as_published(each, TABLE_1[name].degree(k), saturates=TABLE_1[name].saturates)
    ]
    proved, cases = encoders[PROVED], len(found) + 1
    wrong += [] if _as_published(proved, 1, saturates=True) else [PROVED]
    return Outcome(
        measured=(
            f"{cases - len(wrong)} of {cases} cases as published; the encoder's degree "
            f"{proved.slope:.3f} ({_size(stage)}), whose error {_fall_in_words(proved)}"
        ),
        held=not wrong,
        why=_why(encoders, wrong),
        sections=[_picture(found, encoders), _table(found), _encoder_table(encoders)],
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("random weights; the encoder of 12 layers and d 768 of the small models")


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


def _shape(stage: Stage) -> tuple[int, int, int, int]:
    """(n, H, layers, T) of the encoder."""
    return stage.pick(smoke=(32, 4, 2, 8), laptop=(256, 8, 6, 16), paper=(768, 12, 12, 16))


def _size(stage: Stage) -> str:
    n, _, layers, _ = _shape(stage)
    return f"{layers} layers, d {n}"


def _encoder(stage: Stage, *, epsilon: float, bias: bool) -> Homogeneity:
    """Of the stack's last hidden state, [MRGSS21] App. D."""
    n, H, layers, T = _shape(stage)
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
    model = encoder(config, epsilon=epsilon, seed=stage.seed)
    tokens = torch.randint(4 * T, (2, T), generator=generator_for(stage.seed, "tokens"))
    return homogeneity(model, lambda: model.trace(tokens).hidden[-1], octaves=OCTAVES)


def _record(stage: Stage, found: Found, encoders: dict[str, Homogeneity]) -> None:
    named = {(name, str(k)): each for (name, k), each in found.items()}
    for (name, k), each in {**named, **{(n, "1"): e for n, e in encoders.items()}}.items():
        stage.record("degree by calculus", each.degree, component=name, k=k)
        stage.record("degree measured", each.slope, component=name, k=k)
        for c, error in each.errors:
            stage.record("error", error, component=name, k=k, c=f"{c:.4g}")


def _fall_in_words(found: Homogeneity) -> str:
    if found.kind == "exponential":
        return f"falls as steeply as c^−{found.fall:.0f}, exponentially"
    if found.left > EXACT:
        return f"is still {found.left:.0e} at c = {found.errors[-1][0]:,.0f}"
    return "is 0" if found.kind == "exact" else f"falls at last as c^−{found.fall:.1f} only"


def _why(encoders: dict[str, Homogeneity], wrong: list[str]) -> str:
    said = [f"Not as published: {', '.join(wrong)}."] if wrong else []
    beside = [
        f"{name.removeprefix('encoder ')} the error {_fall_in_words(each)}"
        for name, each in encoders.items()
        if name != PROVED
    ]
    said.append(f"What the proof leaves out keeps the degree, not the error: {'; '.join(beside)}.")
    return " ".join(said)


def _picture(found: Found, encoders: dict[str, Homogeneity]) -> Section:
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


def _table(found: Found) -> Section:
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
        (
            name,
            str(each.degree),
            f"{each.slope:.4f}",
            each.kind,
            f"{each.left:.0e}",
            each.beside or "nothing",
        )
        for name, each in encoders.items()
    ]
    return Section(
        heading="The encoder",
        columns=("network", "by calculus", "measured", "error falls", "error left", "beside"),
        rows=rows,
    )
