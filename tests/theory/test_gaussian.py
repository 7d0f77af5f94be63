"""Closed forms and quadrature against two independent integrations, at the edges too."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch.nn import functional

from orderone.core.errors import ConfigError
from orderone.theory.gaussian import averages, pair_averages

SIGMA = {
    "gelu": lambda w: w * special.ndtr(w),
    "relu": lambda w: np.maximum(w, 0.0),
    "erf": special.erf,
    "linear": lambda w: w,
    "tanh": np.tanh,
    "silu": lambda w: w * special.expit(w),
    "gelu-tanh": lambda w: 0.5 * w * (1 + np.tanh(math.sqrt(2 / math.pi) * (w + 0.044715 * w**3))),
}
SLOPE = {
    "gelu": lambda w: special.ndtr(w) + w * np.exp(-w * w / 2) / math.sqrt(2 * math.pi),
    "relu": lambda w: (w > 0) * 1.0,
    "erf": lambda w: 2 / math.sqrt(math.pi) * np.exp(-w * w),
    "linear": lambda w: np.ones_like(w),
    "tanh": lambda w: 1 / np.cosh(w) ** 2,
    "silu": lambda w: special.expit(w) * (1 + w * special.expit(-w)),
}
PAIRS = [(1.0, 1.0, 0.5), (0.4, 2.0, -0.7), (1.3, 0.2, 0.3), (1.0, 1.0, 0.95), (1.5, 0.1, 0.0)]


def both(sigma, a, b, c):
    def number(x):
        return torch.tensor(float(x), dtype=torch.float64)

    found = pair_averages(sigma, number(a), number(b), number(c))
    return found.values.item(), found.slopes.item()


def gauss_hermite(f, a, b, c, points=180):
    """After Cholesky: w₁ = √a u, w₂ = c/√a u + √(b − c²/a) v."""
    x, weight = np.polynomial.hermite_e.hermegauss(points)
    weight = weight / weight.sum()
    u, v = np.meshgrid(x, x, indexing="ij")
    w1, w2 = math.sqrt(a) * u, c / math.sqrt(a) * u + math.sqrt(b - c * c / a) * v
    return float(weight @ (f(w1) * f(w2)) @ weight)


def adaptive(f, a, b, c):
    """scipy's adaptive rule, twice, on the density itself; broken where ReLU has its kinks."""
    det = a * b - c * c

    def density(x, y):
        square = (b * x * x - 2 * c * x * y + a * y * y) / det
        return math.exp(-square / 2) / (2 * math.pi * math.sqrt(det))

    def inner(x):
        centre, wide = c / a * x, 10 * math.sqrt(det / a)
        cuts = [z for z in (0.0, centre) if abs(z - centre) < wide]
        return integrate.quad(
            lambda y: float(f(x) * f(y)) * density(x, y),
            *(centre - wide, centre + wide),
            points=cuts,
            epsabs=1e-13,
            epsrel=1e-12,
        )[0]

    half = (0.0, 10 * math.sqrt(a))
    return sum(
        integrate.quad(lambda x, s=s: inner(s * x), *half, epsabs=1e-12, epsrel=1e-12)[0]
        for s in (-1, 1)
    )


@pytest.mark.parametrize("pair", PAIRS[:3])
@pytest.mark.parametrize("name", SIGMA)
def test_values_against_two_quadratures(name, pair):
    value = both(name, *pair)[0]
    if name != "relu":  # Gauss–Hermite is blind to a kink
        assert value == pytest.approx(gauss_hermite(SIGMA[name], *pair), abs=1e-10)
    if name in ("gelu", "relu", "erf", "tanh"):
        assert value == pytest.approx(adaptive(SIGMA[name], *pair), abs=1e-10)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", SLOPE)
def test_slopes_against_gauss_hermite(name, pair):
    slope = both(name, *pair)[1]
    if name == "relu":
        a, b, c = pair
        quadrant = 0.25 + math.asin(c / math.sqrt(a * b)) / (2 * math.pi)
        assert slope == pytest.approx(quadrant, abs=1e-14)
    else:
        assert slope == pytest.approx(gauss_hermite(SLOPE[name], *pair), abs=1e-10)


@pytest.mark.parametrize("name", ["gelu", "relu", "erf", "tanh", "silu", "gelu-tanh"])
def test_slopes_are_the_derivative_of_values_by_covariance(name):
    """Price's theorem: ∂⟨σσ⟩/∂c = ⟨σ'σ'⟩, by a fourth-order difference."""
    a, b, c, h = 1.2, 0.7, 0.35, 1e-3
    f = [both(name, a, b, c + k * h)[0] for k in (-2, -1, 1, 2)]
    derivative = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    assert both(name, a, b, c)[1] == pytest.approx(derivative, abs=1e-10)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", SIGMA)
def test_full_correlation_is_a_single_integral(name, sign):
    """ρ = ±1 with unequal variances: E[σ(√a u) σ(±√b u)]."""
    a, b = 2.0, 0.3
    f, df = SIGMA[name], SLOPE.get(name)
    end = 12.0

    def single(g):
        def integrand(u):
            density = math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
            return float(g(math.sqrt(a) * u) * g(sign * math.sqrt(b) * u)) * density

        halves = ((-end, 0.0), (0.0, end))
        return sum(integrate.quad(integrand, *h, epsabs=1e-14, limit=200)[0] for h in halves)

    value, slope = both(name, a, b, sign * math.sqrt(a * b))
    assert value == pytest.approx(single(f), abs=1e-10)
    if df is not None:
        assert slope == pytest.approx(single(df), abs=1e-10)


@pytest.mark.parametrize("name", SIGMA)
def test_a_diagonal_of_any_size_is_at_the_edge(name):
    """⟨σσ⟩_aa = E[σ²], also where √a √a is not a."""
    for a in (0.1, 0.7, 1.1, 3.3):
        value, slope = both(name, a, a, a)
        near = both(name, a, a, a * (1 - 1e-13))
        assert value == pytest.approx(near[0], abs=1e-10)
        assert slope == pytest.approx(near[1], abs=1e-6)


@pytest.mark.parametrize("rho", [1.0, 1 - 1e-12, 1 - 1e-6, 0.5, -0.999, -1 + 1e-12, -1.0])
@pytest.mark.parametrize("a", [1e-30, 1.0, 1e8, 1e16])
@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_closed_forms_keep_their_digits_at_any_variance(name, a, rho):
    """Against the formulas in 80 digits: near ρ = ±1 neither (1+a)² − c² nor arcsin has them."""
    c = rho * a
    with mpmath.workdps(80):
        x, y = mpmath.mpf(a), mpmath.mpf(c)
        if name == "erf":
            square = (1 + 2 * x) ** 2
            value = 2 / mpmath.pi * mpmath.asin(2 * y / mpmath.sqrt(square))
            slope = 4 / mpmath.pi / mpmath.sqrt(square - 4 * y**2)
        else:
            delta = (1 + x) ** 2 - y**2
            density = 1 / (2 * mpmath.pi * mpmath.sqrt(delta))
            cdf = mpmath.mpf(1) / 4 + mpmath.asin(y / (1 + x)) / (2 * mpmath.pi)
            value = y * cdf + (x**2 + y**2 * (2 / (1 + x) - 1)) * density
            slope = cdf + y * (2 / (1 + x) + 1 / delta) * density
    found, size = both(name, a, a, c), min(a, 1.0) if name == "erf" else a
    assert found[0] == pytest.approx(float(value), rel=1e-10, abs=1e-11 * size)
    assert found[1] == pytest.approx(float(slope), rel=1e-10)


@pytest.mark.parametrize("a", [1e3, 1e5, 1e8])
def test_what_is_narrow_beside_a_large_variance_is_not_stepped_over(a):
    """⟨σ'σ'⟩ lives at |w| ~ 1: integrated there in w itself, with the Gaussian's own density."""
    x, weight = np.polynomial.legendre.leggauss(400)
    w, weight = 20 * x, 20 * weight
    slope = SLOPE["tanh"](w)
    at_one = slope**2 * np.exp(-w * w / (2 * a)) @ weight / math.sqrt(2 * math.pi * a)
    square = (w[:, None] ** 2 - w[:, None] * w + w * w) / (0.75 * a)
    density = np.exp(-square / 2) / (2 * math.pi * a * math.sqrt(0.75))
    at_half = (weight * slope) @ density @ (weight * slope)
    assert both("tanh", a, a, a)[1] == pytest.approx(at_one, rel=1e-10)
    assert both("tanh", a, a, a / 2)[1] == pytest.approx(at_half, rel=1e-9)
    # hardtanh's two kinks lie in one cell of an even grid.
    inside = special.erf(1 / math.sqrt(2 * a))
    assert both(functional.hardtanh, a, a, a)[1] == pytest.approx(inside, rel=1e-10)
    beyond = 1 - inside + a * (inside - math.sqrt(2 / math.pi / a) * math.exp(-0.5 / a))
    assert both(functional.hardtanh, a, a, a)[0] == pytest.approx(beyond, abs=1e-10)


@pytest.mark.parametrize("name", SIGMA)
def test_zero_variance_is_the_value_at_zero(name):
    f, df = SIGMA[name], SLOPE.get(name)
    zero = np.array(0.0)
    value, slope = both(name, 0.0, 0.0, 0.0)
    assert value == pytest.approx(float(f(zero)) ** 2, abs=1e-15)
    if df is not None:
        assert slope == pytest.approx(float(df(zero)) ** 2, abs=1e-15)
    one = both(name, 0.0, 1.0, 0.0)[0]
    assert one == pytest.approx(float(f(zero)) * gauss_hermite(f, 1.0, 1.0, 0.0) ** 0.5, abs=1e-10)


@pytest.mark.parametrize(("a", "b", "c"), [(1.0, 2.0, 1.41), (1.0, 1.0, -0.9999), (4.0, 4.0, 4.0)])
def test_kinks_of_a_callable_are_found(a, b, c):
    """Leaky ReLU is (1 + k²)⟨σσ⟩ − 2k⟨σσ⟩(−c) of ReLU's closed form."""
    k = 0.1
    value, slope = both(lambda w: functional.leaky_relu(w, k), a, b, c)
    same, mirrored = both("relu", a, b, c), both("relu", a, b, -c)
    assert value == pytest.approx((1 + k * k) * same[0] - 2 * k * mirrored[0], abs=1e-10)
    assert slope == pytest.approx((1 + k * k) * same[1] + 2 * k * mirrored[1], abs=1e-10)


@pytest.mark.parametrize("scale", [0.1, 5.0, 20.0])
def test_a_callable_of_another_scale(scale):
    """erf(kw) at (a, b, c) is erf at k² times that: slow series and the double integral."""
    a, b, c = 1.0, 1.5, 1.2
    value, slope = both(lambda w: torch.erf(scale * w), a, b, c)
    expected = both("erf", *(scale**2 * x for x in (a, b, c)))
    assert value == pytest.approx(expected[0], abs=1e-10)
    assert slope == pytest.approx(scale**2 * expected[1], rel=1e-9)


def test_a_whole_kernel_is_its_pairs():
    A = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K = A @ A.T / 6
    for name in ("gelu", "tanh"):
        found = averages(name, K)
        for i in range(5):
            for j in range(5):
                pair = both(name, K[i, i], K[j, j], K[i, j])
                assert found.values[i, j].item() == pytest.approx(pair[0], abs=1e-12)
                assert found.slopes[i, j].item() == pytest.approx(pair[1], abs=1e-12)


@pytest.mark.parametrize(
    "sigma",
    [lambda w: torch.exp(w * w / 4), lambda w: 1 / w, lambda w: w * float("nan"), torch.exp2],
    ids=["grows", "pole", "nan", "fine"],
)
def test_second_moments_must_exist(sigma):
    if sigma is torch.exp2:
        ln2 = math.log(2)
        assert both(sigma, 1.0, 1.0, 0.5)[0] == pytest.approx(math.exp(1.5 * ln2**2), rel=1e-10)
        return
    with pytest.raises(ConfigError, match="second moment"):
        both(sigma, 1.0, 1.0, 0.5)


def test_impossible_covariances_are_refused():
    with pytest.raises(ConfigError, match="positive semidefinite"):
        both("gelu", 1.0, 1.0, 1.1)
    with pytest.raises(ConfigError, match="positive semidefinite"):
        both("relu", -0.1, 1.0, 0.0)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ConfigError, match="'gulu'"):
        both("gulu", 1.0, 1.0, 0.5)
    with pytest.raises(ConfigError, match="element-wise"):
        both(torch.sum, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("sigma", "said"), [(torch.cumsum, "fails .TypeError"), (torch.is_tensor, "into a bool")]
)
def test_a_function_that_is_no_activation_is_one_line(sigma, said):
    with pytest.raises(ConfigError, match=said):
        both(sigma, 1.0, 1.0, 0.5)
