"""Networks of finite width in plain dense tensors, equation by equation, to measure kernels on.

Weights are drawn for ``w`` networks at once: every tensor's first axis is the network. Nothing
here is shared with the package: not its layer norm, its mask, or its names.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

DTYPE = torch.float64


@dataclass
class Dense:
    """A recipe: what is stacked, and every C_G."""

    n: int
    c: int
    """Channels of a head."""
    C: dict
    encoders: int = 1
    decoders: int = 0
    causal: bool = False
    placement: str = "pre"
    final_norm: bool = True
    stem_norm: bool = False
    pool: str = "none"
    class_token: bool = False
    tied: bool = False
    epsilon: float = 1e-6
    M: int = 2
    xi: float = 1.0
    n_out: int = 2
    rows: int = 0
    """Words."""
    T: tuple = ()
    """Positions of the encoder and of the decoder."""
    activation: object = torch.nn.functional.gelu
    pad: int | None = None
    weights: dict = field(default_factory=dict)

    def draw(self, w: int, n_in: int, generator) -> dict:
        n, C = self.n, self.C

        def normal(*shape, variance):
            z = torch.randn(w, *shape, dtype=DTYPE, generator=generator)
            return z * math.sqrt(variance)

        theta = {}
        if self.rows:
            theta["word"] = normal(self.rows, n, variance=C["word"])
            if self.pad is not None:
                theta["word"][:, self.pad] = 0.0
        else:
            theta["patch"] = normal(n, n_in, variance=C["patch"] / n_in)
        for i, T in enumerate(self.T):
            theta[f"position.{i}"] = normal(T, n, variance=C["position"])
        if self.class_token:
            theta["class_token"] = normal(n, variance=C["class_token"])
        for name in self.attentions():
            for g in "QKVU":
                theta[f"{g}.{name}"] = normal(n, n, variance=C[g] / n)
        for name in self.mlps():
            theta[f"W.{name}"] = normal(self.M * n, n, variance=C["W"] / n)
            theta[f"X.{name}"] = normal(n, self.M * n, variance=C["X"] / (self.M * n))
        if not self.tied:
            theta["head"] = normal(self.n_out, n, variance=C["head"] / n)
            theta["head_bias"] = torch.zeros(w, self.n_out, dtype=DTYPE)
        return theta

    def attentions(self):
        yield from (f"e{i}" for i in range(self.encoders))
        for i in range(self.decoders):
            yield from (f"d{i}", f"m{i}")

    def mlps(self):
        yield from (f"e{i}" for i in range(self.encoders))
        yield from (f"d{i}" for i in range(self.decoders))

    def rate(self, name: str, n_in: int) -> float:
        """λ at Λ = 1, from the table of [DYZ23] eqs. (1.99)–(1.107)."""
        group = name.split(".")[0]
        fan_in = {"patch": n_in, "X": self.M * self.n, **dict.fromkeys("QKVUW", self.n)}
        return 1 / {**fan_in, "head": self.n}.get(group, 1)

    def norm(self, z: Tensor) -> Tensor:
        centred = z - z.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def attend(self, theta, name, s, seen, legal):
        H = self.n // self.c
        q, k, v = (
            apply(theta[f"{g}.{name}"], x).unflatten(-1, (H, self.c))
            for g, x in (("Q", s), ("K", seen), ("V", seen))
        )
        scores = torch.einsum("wbthc,wbshc->wbhts", q, k) / math.sqrt(self.c)
        scores = torch.where(legal[None, :, None], scores, float("-inf"))
        heads = torch.einsum("wbhts,wbshc->wbthc", scores.softmax(-1), v).flatten(-2)
        return apply(theta[f"U.{name}"], heads)

    def mlp(self, theta, name, s):
        return apply(theta[f"X.{name}"], self.activation(apply(theta[f"W.{name}"], s)))

    def block(self, z, path):
        if self.placement == "pre":
            return self.xi * z + path(self.norm(z))
        if self.placement == "branch":
            return self.xi * z + self.norm(path(z))
        return self.norm(self.xi * z + path(z))

    def stem(self, theta, x, side):
        z = theta["word"][:, x] if self.rows else torch.einsum("wnj,btj->wbtn", theta["patch"], x)
        if self.class_token:
            first = theta["class_token"][:, None, None].expand(-1, len(x), 1, -1)
            z = torch.cat([first, z], dim=2)
        z = z + theta[f"position.{side}"][:, None]
        return self.norm(z) if self.stem_norm else z

    def forward(self, theta, x, target=None):
        """Every block's z, the head's last: w b t n."""
        D, T = len(x), self.T[0]
        z = self.stem(theta, x, 0)
        out = [z]
        real = torch.ones(D, T, dtype=torch.bool) if self.pad is None else x != self.pad
        legal = real[:, None, :] & torch.ones(T, T, dtype=torch.bool)
        legal = legal & torch.ones(T, T, dtype=torch.bool).tril() if self.causal else legal
        for i in range(self.encoders):
            z = self.block(z, lambda s, i=i: self.attend(theta, f"e{i}", s, s, legal))
            out.append(z)
            z = self.block(z, lambda s, i=i: self.mlp(theta, f"e{i}", s))
            out.append(z)
        s = self.norm(z) if self.final_norm else z
        if target is not None:
            s = self.decode(theta, s, target, real, out)
        out.append(self.head(theta, s))
        return out

    def decode(self, theta, memory, target, real, out):
        z = self.stem(theta, target, 1)
        out.append(z)
        t = target.shape[1]
        past = torch.ones(len(target), t, t, dtype=torch.bool).tril()
        seen = real[:, None, :].expand(-1, t, -1)
        for i in range(self.decoders):
            z = self.block(z, lambda s, i=i: self.attend(theta, f"d{i}", s, s, past))
            out.append(z)
            z = self.block(z, lambda s, i=i: self.attend(theta, f"m{i}", s, memory, seen))
            out.append(z)
            z = self.block(z, lambda s, i=i: self.mlp(theta, f"d{i}", s))
            out.append(z)
        return self.norm(z) if self.final_norm else z

    def head(self, theta, s):
        if self.pool == "mean":
            s = s.mean(2, keepdim=True)
        if self.pool == "class":
            s = s[:, :, :1]
        if self.tied:
            return apply(theta["word"], s) / math.sqrt(self.n)
        return apply(theta["head"], s) + theta["head_bias"][:, None, None]


def apply(W: Tensor, s: Tensor) -> Tensor:
    """W s, of every network its own."""
    return (s.flatten(1, 2) @ W.mT).unflatten(1, s.shape[1:3])


def kernel(z: Tensor) -> Tensor:
    """(1/n) Σ_i z z of every network: w a a."""
    rows = z.flatten(1, 2)
    return rows @ rows.mT / rows.shape[-1]


def tangent(dense: Dense, theta: dict, x, target=None, *, output: int, n_in: int) -> dict:
    """Ĥ_ii by group of every network, w a a: gradients by autograd, i = ``output``."""
    theta = {name: value.requires_grad_() for name, value in theta.items()}
    # The networks share nothing, so one backward pass serves them all.
    z = dense.forward(theta, x, target)[-1][..., output].sum(0).flatten()
    rows = [torch.autograd.grad(entry, list(theta.values()), retain_graph=True) for entry in z]
    result: dict = {}
    for j, name in enumerate(theta):
        g = torch.stack([row[j].flatten(1) for row in rows], dim=1)
        group = name.split(".")[0]
        result[group] = result.get(group, 0) + dense.rate(name, n_in) * (g @ g.mT)
    return result
