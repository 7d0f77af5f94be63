"""Θ as it would be if no gradient of earlier blocks passed the scores: what J is worth.

Of an attention block's cumulative part, [DYZ23] eqs. (1.160)–(1.163), only C_U C_V A[D] is kept.
Finite networks exclude it; it is here to be excluded.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.theory.attention import AttentionConstants, attention_path, legal_keys
from orderone.theory.head import head, pooled
from orderone.theory.layernorm import layer_norm
from orderone.theory.mlp import mlp
from orderone.theory.network import Network
from orderone.theory.placement import block
from orderone.theory.signal import TOTAL, Rates, Signal, merged
from orderone.theory.softmax import Sampling, softmax_averages
from orderone.theory.spec import KernelSpec
from orderone.theory.stem import stem

DRAWS = 4096


def tangent_without_scores(spec: KernelSpec) -> Float64[Tensor, "a a"]:
    """SGD's Θ at the head of an encoder with layer norm in front, J left out of what passes."""
    if spec.decoders or spec.class_token or spec.stem_norm or spec.optimizer == "adamw":
        raise ConfigError(
            "a tangent kernel without scores of such a network",
            expected="encoders alone, no class token, no norm in the stem, SGD",
            do="change the spec",
        )
    side = Network.read(spec).encoder
    rates = Rates(Lambda={g: spec.rate(g) for g in type(spec.Lambda).model_fields}, split=False)
    group, C = spec.input_group, spec.constants
    z = stem(side.G0, D=side.D, group=group, C_input=C(group), C_PE=C("position"), rates=rates)
    legal = legal_keys(side.D, side.T, side.T, causal=spec.causal, real=side.real)
    xi = iter(spec.block_xi)
    for index in range(spec.encoders):
        sampling = Sampling(
            count=DRAWS, seed=spec.seed, name=f"without scores {index}", head_dim=spec.head_dim
        )

        def attend(s: Signal, sampling: Sampling = sampling) -> Signal:
            return _attention(s, legal, spec, rates, sampling)

        def feed(s: Signal) -> Signal:
            return mlp(s, sigma=spec.activation, C_W=C("W"), C_X=C("X"), rates=rates)

        for path in (attend, feed):
            z = block(z, path, placement=spec.placement, xi=next(xi), epsilon=spec.epsilon)
    s = layer_norm(z, spec.epsilon) if spec.has_final_norm else z
    out = head(s, C=C(spec.head_group), group=spec.head_group, bias=not spec.tied, rates=rates)
    return pooled(out, spec.pool, side.D).Theta[TOTAL]


def _attention(
    s: Signal, legal: Tensor, spec: KernelSpec, rates: Rates, sampling: Sampling
) -> Signal:
    """The block's own parameters as predicted, and A[D] alone of what comes from below."""
    at = AttentionConstants(**{g: spec.constants(g) for g in ("Q", "K", "V", "U")})
    still = Signal(G=s.G, Theta={TOTAL: torch.zeros_like(s.G)})
    own = attention_path(still, still, legal=legal, C=at, rates=rates, sampling=sampling)
    D = s.Theta[TOTAL]
    passed = softmax_averages(
        s.G, s.G, D[None], legal=legal, C_Q=at.Q, C_K=at.K, sampling=sampling
    ).A[1]
    return Signal(G=own.G, Theta=merged(own.Theta, {TOTAL: at.U * at.V * passed}))
