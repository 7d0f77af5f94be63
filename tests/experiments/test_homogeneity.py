"""Degrees as measured against the calculus, and a table that is wrong is found to be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orderone.experiments.homogeneity import TABLE_1, Homogeneity, Parameters, encoder, homogeneity
from orderone.experiments.reproduction import Verdict, reproduce
from orderone.models import LanguageConfig

CS = [2 ** (j / 4) for j in range(40)]


def measured(tmp_path: Path) -> Verdict:
    return reproduce(
        "homogeneity-table",
        scale="smoke",
        to=tmp_path / "run",
        progress=lambda done, total: None,
    )


def of(errors: list[float]) -> Homogeneity:
    pairs = list(zip(CS, errors, strict=True))
    return Homogeneity(degree=1, exact=False, beside="", slope=1.0, errors=pairs)


def test_how_an_error_falls() -> None:
    assert of([0.0] * 40).kind == "exact"
    assert of([math.exp(-c) for c in CS]).kind == "exponential"
    slow = of([c**-2.0 for c in CS])
    assert (slow.kind, slow.left) == ("slower", CS[36] ** -2.0)
    # A score that parts late: the error was nothing, and is again something.
    late = of([math.exp(-c) if i < 38 else 1e-3 for i, c in enumerate(CS)])
    assert (late.kind, late.left) == ("slower", 1e-3)


def test_the_table_holds(tmp_path: Path) -> None:
    verdict = measured(tmp_path)
    assert verdict.held
    assert verdict.measured.startswith("21 of 21 cases")


def test_a_wrong_degree_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(TABLE_1["layer norm"], degree=lambda k: k)
    monkeypatch.setitem(TABLE_1, "layer norm", wrong)
    verdict = measured(tmp_path)
    assert verdict.held is False
    assert "layer norm at k = 1" in verdict.why


def test_data_beside_a_product_is_no_exact_degree() -> None:
    """W x + x: of degree 1, with x left behind, an error of c^−1."""
    model = Parameters(lambda p: p.weight @ p.data + p.data, seed=0)
    found = homogeneity(model, model, octaves=6)
    assert (found.degree, found.exact) == (1, False)
    # ‖(f(2c)/2 − f(c))‖ / ‖f(c)‖ = ‖x/2‖ / ‖c W x + x‖.
    x, y = model.data.norm(), (model.weight @ model.data).detach()
    c, error = found.errors[-1]
    assert error == pytest.approx(float(x / 2 / (c * y + model.data).norm()), rel=1e-9)
    assert found.kind == "slower"
    assert found.fall == pytest.approx(1.0, abs=0.05)


def test_the_encoder_has_the_epsilon_and_biases_asked_for() -> None:
    config = LanguageConfig(
        n=16, H=2, encoders=1, T=4, n_vocab=8, placement="branch", affine=True, head_tied=False
    )
    bare = encoder(config, epsilon=0.0, seed=0)
    biased = encoder(config.replace(bias=True), epsilon=1e-3, seed=0)
    assert all(
        float(p.detach().abs().sum()) == 0 for n, p in bare.named_parameters() if "bias" in n
    )
    assert all(
        float(p.detach().abs().sum()) > 0 for n, p in biased.named_parameters() if "bias" in n
    )
    assert {m.eps for m in biased.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-3}
