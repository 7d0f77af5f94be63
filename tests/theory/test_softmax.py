"""Kronecker sampling against the dense covariance, J[K] against its definition, error bars."""

import itertools
import math

import pytest
import torch

from orderone.theory.attention import legal_keys
from orderone.theory.softmax import (
    Sampling,
    attention,
    form,
    linear_part,
    quadratic_forms,
    softmax_averages,
    uniform,
)

DTYPE = torch.float64


def generator(seed):
    return torch.Generator().manual_seed(seed)


def kernel(a, seed, features=None):
    A = torch.randn(a, features or a + 2, dtype=DTYPE, generator=generator(seed))
    G = A @ A.T
    scale = G.diagonal().rsqrt()
    return scale[:, None] * G * scale


def explicit_J(P, F, K):
    """The four-fold sum of the definition, with an explicit Jacobian, for one draw."""
    D, T, S = P.shape
    jacobian = torch.zeros(D, T, S, S, dtype=DTYPE)
    for d, t, i, u in itertools.product(range(D), range(T), range(S), range(S)):
        jacobian[d, t, i, u] = P[d, t, i] * (int(i == u) - P[d, t, u])
    F, K = F.view(D, S, D, S), K.view(D, S, D, S)
    J = torch.zeros(D, T, D, T, dtype=DTYPE)
    for d, t, e, r in itertools.product(range(D), range(T), range(D), range(T)):
        for i, j in itertools.product(range(S), range(S)):
            for u, v in itertools.product(range(S), range(S)):
                J[d, t, e, r] += (
                    jacobian[d, t, i, u] * jacobian[e, r, j, v] * F[d, i, e, j] * K[d, u, e, v]
                )
    return J.view(D * T, D * T)


def dense_scores(F, F_keys, D, T, S, C, count):
    """Ω̃ from the full (D T S)² covariance by Cholesky: the matrix that we never build."""
    F, F_keys = F.view(D, T, D, T), F_keys.view(D, S, D, S)
    covariance = C * torch.einsum("dter,dieg->dtierg", F, F_keys).reshape(D * T * S, D * T * S)
    jitter = 1e-12 * torch.eye(len(covariance), dtype=DTYPE)
    root = torch.linalg.cholesky(covariance + jitter)
    z = torch.randn(count, len(root), dtype=DTYPE, generator=generator(99))
    return (z @ root.T).view(count, D, T, S)


@pytest.mark.parametrize("causal", [False, True])
def test_J_in_matrix_products_is_its_definition(causal):
    D, T = 2, 3
    F, K = kernel(D * T, 0), kernel(D * T, 1)
    scores = torch.randn(1, D, T, T, dtype=DTYPE, generator=generator(2))
    P = attention(scores, legal_keys(D, T, T, causal=causal))
    A, J = quadratic_forms(P, F, K[None])
    assert torch.allclose(J[0, 0], explicit_J(P[0], F, K), atol=1e-13)
    whole = torch.block_diag(*P[0])
    assert torch.allclose(A[0, 0], whole @ K @ whole.T, atol=1e-13)


def test_the_jacobian_of_the_definition_is_the_softmaxs():
    scores = torch.randn(4, dtype=DTYPE, generator=generator(0))
    P = scores.softmax(0)
    exact = torch.autograd.functional.jacobian(lambda x: x.softmax(0), scores)
    assert torch.allclose(torch.diag(P) - torch.outer(P, P), exact, atol=1e-15)


CASES = {
    "bidirectional": {"D": 2, "T": 3, "S": 3, "causal": False},
    "causal": {"D": 2, "T": 3, "S": 3, "causal": True},
    "mixed": {"D": 2, "T": 2, "S": 3, "causal": False},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kronecker_sampling_has_the_dense_covariances_averages(case):
    """Both estimates within 4.5 joint standard errors, k/√n, on every entry."""
    D, T, S, causal = case.values()
    F = kernel(D * T, 0)
    F_keys = F if T == S else kernel(D * S, 3)
    K = kernel(D * S, 1)
    C_Q, C_K, count = 2.0, 0.8, 40_000
    legal = legal_keys(D, T, S, causal=causal)
    runs = [
        softmax_averages(
            F,
            F_keys,
            K[None],
            legal=legal,
            C_Q=C_Q,
            C_K=C_K,
            sampling=Sampling(count=512, seed=seed),
        )
        for seed in range(16)
    ]
    P = attention(dense_scores(F, F_keys, D, T, S, C_Q * C_K, count), legal)
    A, J = quadratic_forms(P, F_keys, torch.stack([F_keys, K]))
    for ours, dense in (
        ([run.A for run in runs], A),
        ([run.through_keys for run in runs], C_Q * F * J),
        ([run.through_queries[None] for run in runs], C_K * J[:, :1]),
    ):
        stacked = torch.stack(ours)
        joint = (stacked.var(0) / len(runs) + dense.var(0) / count).sqrt()
        assert ((stacked.mean(0) - dense.mean(0)).abs() <= 4.5 * joint + 1e-12).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_control_variates_mean_is_known(causal):
    """E[P₀ K P₀'ᵀ] = M K M'ᵀ + C F ∘ J_M[K], at 4.5 standard errors of direct draws."""
    D, T, C = 2, 3, 0.7
    F, K = kernel(D * T, 0), kernel(D * T, 1)
    legal = legal_keys(D, T, T, causal=causal)
    drawn = form(linear_part(dense_scores(F, F, D, T, T, C, 40_000), legal), K[None])[:, 0]
    mean, spread = quadratic_forms(uniform(legal)[None], F, K[None])
    known = mean[0, 0] + C * F * spread[0, 0]
    se = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - known).abs() <= 4.5 * se + 1e-12).all()


def test_the_linear_part_is_the_softmaxs_derivative():
    legal = legal_keys(1, 3, 3, causal=True)
    step = torch.randn(1, 1, 3, 3, dtype=DTYPE, generator=generator(0))
    h = 1e-5
    central = (attention(h * step, legal) - attention(-h * step, legal)) / (2 * h)
    assert torch.allclose(linear_part(step, legal) - uniform(legal), central, atol=1e-9)


def averages(F, *, count=4096, seed=0, head_dim=None, causal=False, D=1, **more):
    T = len(F) // D
    return softmax_averages(
        F,
        F,
        F[None],
        legal=legal_keys(D, T, T, causal=causal),
        C_Q=1.0,
        C_K=1.5,
        sampling=Sampling(count=count, seed=seed, head_dim=head_dim, **more),
    )


def test_finite_heads_are_dense_products_of_queries_and_keys():
    """At C = 3, against plain draws of q and k with every average written out."""
    F, C, count = kernel(3, 0), 3, 60_000
    root = torch.linalg.cholesky(F)
    q = torch.randn(count, 3, C, dtype=DTYPE, generator=generator(1))
    k = math.sqrt(1.5) * torch.randn(count, 3, C, dtype=DTYPE, generator=generator(2))
    q, k = root @ q, root @ k
    P = (q @ k.mT / math.sqrt(C)).softmax(-1)
    jacobian = torch.diag_embed(P) - P[..., :, None] * P[..., None, :]
    qq, kk = q @ q.mT / C, k @ k.mT / C
    values = torch.einsum("wtiu,ij->wtuj", jacobian, F)
    full = torch.einsum("wtuj,wrjv->wtruv", values, jacobian)
    dense = {
        "A": P @ F @ P.mT,
        "through_keys": qq * torch.einsum("wtruv,uv->wtr", full, F),
        "through_queries": torch.einsum("wtruv,wuv->wtr", full, kk),
    }
    runs = [averages(F, count=1024, seed=seed, head_dim=C) for seed in range(16)]
    for name, draws in dense.items():
        ours = torch.stack([getattr(run, name).view(-1, 3, 3)[0] for run in runs])
        joint = (ours.var(0) / len(runs) + draws.var(0) / count).sqrt()
        assert ((ours.mean(0) - draws.mean(0)).abs() <= 4.5 * joint).all(), name


def test_finite_heads_tend_to_the_gaussian_limit_as_one_over_C():
    F = kernel(3, 0)
    limit = averages(F, count=2**15)
    sizes = [2, 4, 8, 16]
    gaps = [
        (averages(F, count=2**15, head_dim=C).through_keys - limit.through_keys).norm().item()
        for C in sizes
    ]
    x, y = torch.tensor(sizes).double().log(), torch.tensor(gaps).double().log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope.item() == pytest.approx(-1.0, abs=0.2)


def test_without_scores_attention_is_the_mean():
    F = kernel(4, 0)
    still = softmax_averages(
        F,
        F,
        F[None],
        legal=legal_keys(1, 4, 4, causal=False),
        C_Q=0.0,
        C_K=1.0,
        sampling=Sampling(count=8, seed=0),
    )
    assert torch.allclose(still.A[0], F.mean().expand(4, 4), atol=1e-14)
    assert torch.equal(still.through_keys, torch.zeros(2, 4, 4, dtype=DTYPE))


def test_pads_are_as_if_absent():
    """Two samples, the last key of either a pad: the others' averages are of the shorter ones."""
    F = kernel(6, 0)
    real = torch.tensor([[True, True, False]] * 2)
    legal = legal_keys(2, 3, 3, causal=False, real=real)
    kept = torch.tensor([0, 1, 3, 4])
    C, z = 1.2, torch.randn(50, 6, 6, dtype=DTYPE, generator=generator(0))
    A = torch.linalg.cholesky(F)
    scores = math.sqrt(C) * torch.stack([A[:3] @ z @ A[:3].T, A[3:] @ z @ A[3:].T], dim=1)
    long = quadratic_forms(attention(scores, legal), F, F[None])
    short_legal = legal_keys(2, 2, 2, causal=False)
    short_F = F[kept][:, kept]
    short = quadratic_forms(attention(scores[..., :2, :2], short_legal), short_F, short_F[None])
    for a, b in zip(long, short, strict=True):
        assert torch.allclose(a[..., kept, :][..., kept], b, atol=1e-13)


def test_a_query_without_keys_receives_nothing():
    legal = torch.zeros(1, 2, 2, dtype=torch.bool)
    assert torch.equal(uniform(legal), torch.zeros(1, 2, 2, dtype=DTYPE))


@pytest.mark.parametrize(("a", "gain"), [(3, 6.0), (20, 3.0)])
def test_the_estimates_beat_plain_draws(a, gain):
    """Variance at equal draws: few dimensions, all quasi-random, and many, mirrored."""
    F = kernel(a, 0, features=a)
    count, repeats = 512, 24
    ours = torch.stack([averages(F, count=count, seed=seed).A[0] for seed in range(repeats)])
    A = torch.linalg.cholesky(F + 1e-12 * torch.eye(a))
    z = torch.randn(8192, a, a, dtype=DTYPE, generator=generator(0))
    P = (math.sqrt(1.5) * A @ z @ A.T).softmax(-1)
    plain = (P @ F @ P.mT).var(0) / count
    assert plain.mean() / ours.var(0).mean() > gain


@pytest.mark.parametrize("a", [3, 20])
def test_draws_depend_on_the_seed_alone(a):
    F = kernel(a, 0)
    first = averages(F, count=600)
    assert torch.equal(first.A, averages(F, count=600).A)
    other = averages(F, count=600, seed=1)
    assert not torch.equal(first.A, other.A)
    # Smaller chunks of the same draws: the same numbers up to the order of a sum, where the pilot
    # that fixes the coefficients is the same.
    chunked = averages(F, count=600, memory=300 * 8 * 8 * 2 * a * a)
    assert torch.allclose(first.A, chunked.A, rtol=1e-9)
