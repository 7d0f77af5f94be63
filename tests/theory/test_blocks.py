"""Blocks whose kernels are known without sampling or quadrature."""

import pytest
import torch

from orderone.theory.head import head, pooled
from orderone.theory.layernorm import layer_norm
from orderone.theory.mlp import mlp
from orderone.theory.placement import block
from orderone.theory.signal import Rates, Signal
from orderone.theory.stem import stem


def kernel(seed, a=4):
    A = torch.randn(a, a + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return A @ A.T


F, D_1, D_2 = kernel(0), kernel(1), kernel(2)
SPLIT = Rates(
    Lambda={"a": 2.0, "b": 0.3, "X": 1.5, "W": 0.7, "head": 1.1, "head_bias": 3.0}, split=True
)
SIGNAL = Signal(G=F, Theta={"a": D_1, "b": D_2})


def test_a_linear_mlp_is_a_product_of_two_maps():
    """r = X W s: G = C_X C_W F, Θ = Λ_X C_W F + Λ_W C_X F + C_X C_W D."""
    r = mlp(SIGNAL, sigma="linear", C_W=1.7, C_X=0.6, rates=SPLIT)
    torch.testing.assert_close(r.G, 1.02 * F)
    torch.testing.assert_close(r.Theta["X"], 1.7 * F)
    torch.testing.assert_close(r.Theta["W"], 0.6 * F)
    torch.testing.assert_close(r.Theta["a"], 1.02 * D_1)
    torch.testing.assert_close(
        SPLIT.total(r.Theta), 1.5 * 1.7 * F + 0.7 * 0.6 * F + 1.02 * (2.0 * D_1 + 0.3 * D_2)
    )


def test_the_head_is_a_linear_map_with_a_bias():
    z = head(SIGNAL, C=0.8, group="head", bias=True, rates=SPLIT)
    torch.testing.assert_close(z.G, 0.8 * F)
    torch.testing.assert_close(z.Theta["head"], F)
    torch.testing.assert_close(z.Theta["head_bias"], torch.ones_like(F))
    torch.testing.assert_close(z.Theta["b"], 0.8 * D_2)
    tied = head(Signal(G=F, Theta={"word": D_1}), C=0.8, group="word", bias=False, rates=SPLIT)
    torch.testing.assert_close(tied.Theta["word"], F + 0.8 * D_1)


def test_pooling_reads_the_first_position_or_the_mean():
    first, mean = pooled(SIGNAL, "class", 2), pooled(SIGNAL, "mean", 2)
    torch.testing.assert_close(first.G, F[::2][:, ::2])
    torch.testing.assert_close(mean.Theta["a"][0, 1], D_1[:2, 2:].mean())


def test_layer_norm_keeps_its_epsilon():
    s = layer_norm(SIGNAL, 0.5)
    expected = F[0, 1] / ((F[0, 0] + 0.5) * (F[1, 1] + 0.5)) ** 0.5
    torch.testing.assert_close(s.G[0, 1], expected)
    torch.testing.assert_close(s.Theta["a"][0, 1], expected * D_1[0, 1] / F[0, 1])


@pytest.mark.parametrize("placement", ["pre", "branch", "post"])
def test_placements_compose_norm_path_and_skip(placement):
    """With R(z) = √3 W z, one more map of an identity covariance."""

    def path(s):
        return s.mapped(lambda K: 3.0 * K)

    def normed(K):
        scale = (K.diagonal() + 0.1).rsqrt()
        return scale[:, None] * K * scale

    z = block(SIGNAL, path, placement=placement, xi=0.5, epsilon=0.1)
    expected = {
        "pre": 0.25 * F + 3 * normed(F),
        "branch": 0.25 * F + normed(3 * F),
        "post": normed(3.25 * F),
    }
    torch.testing.assert_close(z.G, expected[placement])


def test_a_class_token_shares_a_kernel_with_itself_alone():
    rates = Rates(Lambda={}, split=True)
    z = stem(F, D=2, group="patch", C_input=2.0, C_PE=0.0, rates=rates, C_class=0.7)
    assert z.G.shape == (6, 6)
    torch.testing.assert_close(z.G[0, [0, 3]], torch.tensor([0.7, 0.7], dtype=torch.float64))
    assert torch.equal(z.G[0, [1, 2, 4, 5]], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(z.G[1:3, 4:6], 2.0 * F[:2, 2:])
    torch.testing.assert_close(z.Theta["position"][0], torch.tensor([1.0, 0, 0, 1, 0, 0]).double())
