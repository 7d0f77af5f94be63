"""Every block against networks of finite width: G's fluctuation and bias, Θ by group."""

import math

import pytest
import torch

from orderone.theory.kernels import kernels
from tests.theory.finite import DTYPE, Dense, kernel, tangent

C = {
    "patch": 0.8, "word": 0.8, "position": 0.3, "class_token": 0.5, "Q": 1.2, "K": 0.9,
    "V": 0.7, "U": 1.3, "W": 1.6, "X": 1.2, "head": 0.9,
}  # fmt: skip
HEAD_DIM = 4
X = torch.randn(2, 3, 5, dtype=DTYPE, generator=torch.Generator().manual_seed(3))
WORDS = torch.tensor([[0, 1, 2], [3, 1, 4]])
PADDED = torch.tensor([[1, 2, 0], [3, 1, 4]])
TARGETS = torch.tensor([[2, 5], [1, 6]])

VISION = {"stem": "vision", "inputs": X}
LANGUAGE = {"stem": "language", "inputs": WORDS}
CASES = {
    "vision": VISION,
    "causal language": {**LANGUAGE, "causal": True},
    "mean of two encoders": {**VISION, "encoders": 2, "pool": "mean", "epsilon": 0.3, "xi": 0.7},
    "class token": {**VISION, "class_token": True, "pool": "class", "activation": "tanh"},
    "branch": {**VISION, "placement": "branch", "activation": "relu"},
    "post": {**VISION, "placement": "post"},
    "encoder-decoder": {
        "stem": "language", "inputs": PADDED, "targets": TARGETS, "decoders": 1, "pad": 0,
        "stem_norm": True,
    },
}  # fmt: skip


def predicted(case, **more):
    group = "patch" if case["stem"] == "vision" else "word"
    other = {"patch": "word", "word": "patch"}[group]
    constants = {name: value for name, value in C.items() if name != other}
    settings = {"samples": 2**15, "recursions": 16, "head_dim": HEAD_DIM, "C": constants}
    return kernels({**settings, **case, **more})


def dense(case, n):
    tied, pre = case["stem"] == "language", case.get("placement", "pre") == "pre"
    names = ("encoders", "decoders", "causal", "placement", "stem_norm", "pool", "class_token")
    names = (*names, "epsilon", "xi", "pad")
    T = [case["inputs"].shape[1] + case.get("class_token", False)]
    T += [case["targets"].shape[1]] if "targets" in case else []
    sigma = {"relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu}
    return Dense(
        n=n,
        c=HEAD_DIM,
        C=C,
        T=tuple(T),
        tied=tied,
        rows=8 if tied else 0,
        n_out=n,
        final_norm=pre,
        activation=sigma[case.get("activation", "gelu")],
        **{name: case[name] for name in names if name in case},
    )


def measured_G(case, n, draws, seed=0):
    """G of every block but the head, for each of ``draws`` networks."""
    generator = torch.Generator().manual_seed(1000 * seed + n)
    network = dense(case, n)
    parts = []
    for start in range(0, draws, chunk := max(1, 2**21 // n**2)):
        theta = network.draw(min(chunk, draws - start), X.shape[-1], generator)
        zs = network.forward(theta, case["inputs"], case.get("targets"))[:-1]
        parts.append([kernel(z) for z in zs])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def slope(x, y):
    x, y = torch.tensor(x).double().log(), torch.tensor(y).double().log()
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


@pytest.mark.parametrize("name", ["vision", "encoder-decoder"])
def test_one_draws_error_falls_as_one_over_the_root_of_n(name):
    """‖G − prediction‖ of single networks, r.m.s. over draws: slope −½ within 0.12, every block."""
    widths = [64, 256, 1024]
    blocks = predicted(CASES[name]).blocks[:-1]
    gaps = []
    for n in widths:
        draws = 8192 // n  # 8 of the widest
        G = measured_G(CASES[name], n, draws)
        pairs = zip(G, blocks, strict=True)
        gaps.append([(g - b.G).square().mean().sqrt().item() for g, b in pairs])
    for block, column in zip(blocks, zip(*gaps, strict=True), strict=True):
        assert slope(widths, column) == pytest.approx(-0.5, abs=0.12), block.name


@pytest.mark.parametrize("name", CASES)
def test_the_means_bias_falls_as_one_over_n(name):
    """Mean G of many networks at n and 2n: 2 Ḡ(2n) − Ḡ(n) has no bias of order 1/n left."""
    case, (n, draws) = CASES[name], (32, 500)
    blocks = predicted(case).blocks[:-1]
    small, large = measured_G(case, n, draws), measured_G(case, 2 * n, draws)
    for b, at_n, at_2n in zip(blocks, small, large, strict=True):
        means = [G.mean(0) for G in (at_n, at_2n)]
        se = [G.var(0) / draws for G in (at_n, at_2n)]
        limit = 2 * means[1] - means[0]
        joint = (4 * se[1] + se[0] + b.G_se.square()).sqrt()
        # What stays is of order 1/n²; n = 64 must do better than its own bias shows.
        allowed = 4 * joint + 6 / n**2 * b.G.abs().max()
        assert ((limit - b.G).abs() <= allowed).all(), b.name


def test_the_means_bias_has_slope_minus_one():
    """post with a large ε: the diagonal's bias is far above its fluctuation's error."""
    case = {**CASES["post"], "epsilon": 0.5}
    widths, draws = [16, 32, 64], 1000
    last = predicted(case, samples=2**17).blocks[-2].G.diagonal().mean()
    gaps, errors = [], []
    for n in widths:
        gap = measured_G(case, n, draws)[-1].diagonal(dim1=-2, dim2=-1).mean(-1) - last
        gaps.append(abs(gap.mean().item()))
        errors.append(gap.std().item() / math.sqrt(draws))
    assert gaps[-1] > 6 * errors[-1], "the bias is resolved"
    assert slope(widths, gaps) == pytest.approx(-1.0, abs=0.2)


def measured_Theta(case, n, draws, chunk=24, **constants):
    """Θ by group of single networks, from autograd."""
    generator = torch.Generator().manual_seed(7 + n)
    network = dense(case, n)
    network.C = {**C, **constants}
    # Output 7 is a word of neither inputs nor targets: no contact with the stem.
    network.n_out, output = 1, 7 if network.tied else 0
    found = []
    for _ in range(0, draws, chunk):
        theta = network.draw(chunk, X.shape[-1], generator)
        x, target = case["inputs"], case.get("targets")
        found.append(tangent(network, theta, x, target, output=output, n_in=X.shape[-1]))
    return {g: torch.cat([each[g] for each in found]) for g in found[0]}


@pytest.mark.parametrize("name", CASES)
def test_theta_by_group_is_autograds(name):
    """Each group's Θ at the head, width 64: entries within 4.5 joint standard errors and 2/n.

    The overlap ⟨Θ, prediction⟩ / ‖prediction‖², which averages over entries, is 1 within a tenth:
    dropping J's terms moves it by a fifth.
    """
    case, n, draws = CASES[name], 64, 144
    head = predicted(case, by_group=True).head
    found = measured_Theta(case, n, draws)
    assert set(found) == set(head.by_group)
    found["total"] = torch.stack(list(found.values())).sum(0)
    for group, H in found.items():
        Theta = head.Theta if group == "total" else head.by_group[group].value
        ours = head.Theta_se if group == "total" else head.by_group[group].se
        joint = (H.var(0) / draws + ours.square()).sqrt()
        gap = (H.mean(0) - Theta).abs()
        assert (gap <= 4.5 * joint + 2 / n * Theta.abs().max()).all(), group
        overlap = (H * Theta).sum((1, 2)) / Theta.square().sum()
        error = overlap.std() / math.sqrt(draws)
        assert abs(overlap.mean() - 1) <= 4 * error + 1 / n, group
        if group in ("total", "patch", "word", "U", "V", "W", "X"):
            assert 4 * error < 0.2, group


def test_gradients_through_the_softmax_have_their_size():
    """Strong scores: halving either J term of the cumulative part moves patch's Θ by a tenth."""
    case, n, draws = CASES["vision"], 128, 288
    strong = {"Q": 2.5, "K": 2.0, "V": 1.5, "U": 1.5}
    constants = {name: value for name, value in {**C, **strong}.items() if name != "word"}
    Theta = predicted(case, by_group=True, C=constants).head.by_group["patch"].value
    H = measured_Theta(case, n, draws, **strong)["patch"]
    overlap = (H * Theta).sum((1, 2)) / Theta.square().sum()
    error = overlap.std().item() / math.sqrt(draws)
    assert 4 * error < 0.07
    assert overlap.mean().item() == pytest.approx(1.0, abs=4 * error + 1 / n)
