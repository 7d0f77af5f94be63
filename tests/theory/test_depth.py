"""Linear growth of G, and where F comes to rest."""

import pytest
import torch

from orderone.core.errors import ConfigError
from orderone.theory.depth import fixed_kernel, growth, increment
from orderone.theory.gaussian import pair_averages
from orderone.theory.kernels import kernels
from orderone.theory.softmax import Sampling
from orderone.theory.spec import InitialConstants

X = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SAMPLING = Sampling(count=1024, seed=0)
ONE = torch.tensor(1.0, dtype=torch.float64)


def test_an_mlp_adds_the_same_in_every_block():
    """Without attention's values G's diagonal grows by C_X ⟨σ²⟩_{C_W} exactly: F_aa = 1."""
    C = {"V": 0.0, "W": 0.9, "X": 1.7}
    found = kernels(
        stem := {"stem": "vision", "inputs": X, "encoders": 6, "C": C}, recursions=4, samples=1024
    )
    assert stem["encoders"] == 6
    line = growth(found.blocks, ending="mlp")
    expected = 1.7 * pair_averages("gelu", 0.9 * ONE, 0.9 * ONE, 0.9 * ONE).values.item()
    assert line.slope == pytest.approx(expected, rel=1e-5)  # ε = 1e-6 takes the rest
    assert line.increments == pytest.approx([expected] * 5, rel=1e-5)
    assert line.r2 == pytest.approx(1.0, abs=1e-9)


def test_attention_adds_at_most_its_constants():
    C = {"X": 0.0, "U": 1.5, "V": 0.8}
    found = kernels(
        {"stem": "vision", "inputs": X, "encoders": 8, "C": C}, recursions=4, samples=2048
    )
    line = growth(found.blocks, ending="attention")
    assert all(0 < step <= 1.2 * (1 + 1e-6) for step in line.increments)
    # Tokens align with depth, so the steps tend to the most that can be.
    assert line.increments[-1] > line.increments[0]


def test_the_fixed_kernel_stays_under_the_recursion():
    """One more pair at G = ℓ Δ(F*), ℓ large, leaves F where it is."""
    C = InitialConstants(Q=0.5, K=0.5, V=0.0, X=1.2)
    F = 0.4 * torch.ones(3, 3, dtype=torch.float64) + 0.6 * torch.eye(3, dtype=torch.float64)
    rest = fixed_kernel(F, D=1, C=C, sampling=SAMPLING, activation="erf")
    moved = increment(rest, D=1, C=C, sampling=SAMPLING, activation="erf")
    scale = moved.diagonal().rsqrt()
    assert torch.allclose(scale[:, None] * moved * scale, rest, atol=1e-8)


def test_an_odd_activation_keeps_orthogonal_tokens_apart():
    C = InitialConstants(V=0.0)
    eye = torch.eye(3, dtype=torch.float64)
    assert torch.allclose(fixed_kernel(eye, D=1, C=C, sampling=SAMPLING, activation="erf"), eye)


def test_attention_alone_aligns_all_tokens():
    F = 0.2 * torch.ones(3, 3, dtype=torch.float64) + 0.8 * torch.eye(3, dtype=torch.float64)
    rest = fixed_kernel(F, D=1, C=InitialConstants(X=0.0), sampling=SAMPLING)
    assert torch.allclose(rest, torch.ones(3, 3, dtype=torch.float64), atol=1e-6)


def test_growth_needs_two_blocks():
    found = kernels({"stem": "vision", "inputs": X}, recursions=4, samples=1024)
    with pytest.raises(ConfigError, match="at least two"):
        growth(found.blocks, ending="mlp")


def test_a_deep_post_network_keeps_its_symmetry():
    """F goes to 1, and rounding in one half of it alone would grow by a factor each block."""
    found = kernels(
        {"stem": "vision", "inputs": X, "encoders": 60, "causal": True},
        placement="post",
        C={"Q": 1.5, "K": 1.5},
        samples=1024,
        recursions=4,
    )
    for block in found.blocks:
        for K in (block.G, block.Theta):
            assert float((K - K.T).abs().max()) <= 1e-12 * float(K.abs().max())
