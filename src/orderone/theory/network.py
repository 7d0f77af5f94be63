"""G, F and Θ through every block of a network: one recursion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orderone.core.errors import DataError
from orderone.theory.attention import AttentionConstants, attention_path, legal_keys
from orderone.theory.head import head, pooled
from orderone.theory.inputs import input_kernel, patches, real, tokens
from orderone.theory.layernorm import layer_norm
from orderone.theory.mlp import mlp
from orderone.theory.placement import Path, block
from orderone.theory.signal import Rates, Signal
from orderone.theory.softmax import Sampling
from orderone.theory.spec import KernelSpec, rates_of
from orderone.theory.stem import patch_kernel, stem, token_kernel


@dataclass(frozen=True, kw_only=True)
class BlockSignal:
    """What comes out of one block."""

    name: str
    G: Float[Tensor, "a a"]
    F: Float[Tensor, "a a"]
    """Kernel of LN(z)."""
    Theta: Mapping[str, Float[Tensor, "a a"]]


@dataclass(frozen=True, kw_only=True)
class Side:
    """Inputs of the encoder or of the decoder, as the recursion sees them."""

    D: int
    T: int
    G0: Float[Tensor, "a a"]
    real: Bool[Tensor, "b t"] | None = None
    """Not pads."""
    words: Int[Tensor, "b t"] | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """A spec with its inputs read and checked; ``recursion`` runs it once."""

    spec: KernelSpec
    encoder: Side
    decoder: Side | None
    rates: Rates

    @classmethod
    def read(cls, spec: KernelSpec) -> Network:
        """The network of a spec."""
        encoder = _side(spec, "inputs")
        decoder = _side(spec, "targets") if spec.decoders else None
        if decoder is not None and decoder.D != encoder.D:
            raise DataError(
                f"{encoder.D} inputs with {decoder.D} targets",
                expected="as many of either",
                do="give every sample its target",
            )
        rates = Rates(Lambda=rates_of(spec), split=spec.splits)
        return cls(spec=spec, encoder=encoder, decoder=decoder, rates=rates)

    @property
    def vocabulary(self) -> int:
        """Rows of W^WE: as stated, or as many words as the inputs show; [pad] learns nothing."""
        if self.spec.n_vocab is not None:
            return self.spec.n_vocab
        sides = [side.words for side in (self.encoder, self.decoder) if side is not None]
        words = [each.flatten() for each in sides if each is not None]
        if not words:
            return 1
        shown = torch.cat(words).unique()
        return max(1, len(shown if self.spec.pad is None else shown[shown != self.spec.pad]))

    def recursion(self, index: int, draws: int) -> list[BlockSignal]:
        """Every block once, from draws that no other ``index`` shares."""
        walk = _Walk(network=self, sampling=self._sampling(index, draws))
        return walk.run()

    def _sampling(self, index: int, draws: int) -> Sampling:
        spec = self.spec
        return Sampling(
            count=draws,
            seed=spec.seed,
            name=f"recursion {index}",
            head_dim=spec.head_dim,
            memory=spec.memory_mib * 2**20,
        )


class _Walk:
    """One recursion under way."""

    def __init__(self, *, network: Network, sampling: Sampling) -> None:
        self.network, self.spec, self.rates = network, network.spec, network.rates
        self.sampling = sampling
        self.C = AttentionConstants(**{g: self.spec.constants(g) for g in ("Q", "K", "V", "U")})
        self.xi = iter(self.spec.block_xi)
        self.blocks: list[BlockSignal] = []

    def run(self) -> list[BlockSignal]:
        encoder, decoder = self.network.encoder, self.network.decoder
        own = "" if decoder is None else "encoder."
        z, legal = self.stem(encoder, f"{own}stem"), self.legal(encoder, causal=self.spec.causal)
        for i in range(self.spec.encoders):
            z = self.attend(z, legal, f"encoder.{i}.attention")
            z = self.mlp(z, f"encoder.{i}.mlp")
        s = self.last(z)
        self.head(s if decoder is None else self.decode(s, encoder, decoder), encoder.D)
        return self.blocks

    def decode(self, memory: Signal, encoder: Side, decoder: Side) -> Signal:
        z = self.stem(decoder, "decoder.stem")
        own = self.legal(decoder, causal=True)
        seen = legal_keys(decoder.D, decoder.T, encoder.T, causal=False, real=encoder.real)
        for i in range(self.spec.decoders):
            z = self.attend(z, own, f"decoder.{i}.attention")
            z = self.attend(z, seen, f"decoder.{i}.mixed", memory)
            z = self.mlp(z, f"decoder.{i}.mlp")
        return self.last(z)

    def stem(self, side: Side, name: str) -> Signal:
        spec = self.spec
        z = stem(
            side.G0,
            D=side.D,
            group=spec.input_group,
            C_input=spec.constants(spec.input_group),
            C_PE=spec.C.position,
            rates=self.rates,
            C_class=spec.C.class_token if spec.class_token else None,
        )
        return self.seen(layer_norm(z, spec.epsilon) if spec.stem_norm else z, name)

    def attend(self, z: Signal, legal: Tensor, name: str, memory: Signal | None = None) -> Signal:
        sampling = replace(self.sampling, name=f"{name} {self.sampling.name}")

        def path(s: Signal) -> Signal:
            other = s if memory is None else memory
            return attention_path(
                s, other, legal=legal, C=self.C, rates=self.rates, sampling=sampling
            )

        return self.join(z, path, name)

    def mlp(self, z: Signal, name: str) -> Signal:
        spec = self.spec

        def path(s: Signal) -> Signal:
            return mlp(s, sigma=spec.activation, C_W=spec.C.W, C_X=spec.C.X, rates=self.rates)

        return self.join(z, path, name)

    def join(self, z: Signal, path: Path, name: str) -> Signal:
        spec = self.spec
        joined = block(z, path, placement=spec.placement, xi=next(self.xi), epsilon=spec.epsilon)
        return self.seen(joined, name)

    def last(self, z: Signal) -> Signal:
        return layer_norm(z, self.spec.epsilon) if self.spec.has_final_norm else z

    def head(self, s: Signal, D: int) -> None:
        spec = self.spec
        z = head(
            s,
            C=spec.constants(spec.head_group),
            group=spec.head_group,
            bias=not spec.tied,
            rates=self.rates,
        )
        self.seen(pooled(z, spec.pool, D), "head")

    def legal(self, side: Side, *, causal: bool) -> Tensor:
        T = self.positions(side)
        return legal_keys(side.D, T, T, causal=causal, real=side.real)

    def positions(self, side: Side) -> int:
        return side.T + self.spec.class_token

    def seen(self, z: Signal, name: str) -> Signal:
        refuse_overflow(name, z.G, self.rates.total(z.Theta))
        F = layer_norm(z, self.spec.epsilon).G
        self.blocks.append(BlockSignal(name=name, G=z.G, F=F, Theta=z.Theta))
        return z


def refuse_overflow(name: str, *kernels: Float[Tensor, "a a"]) -> None:
    """Refuse what float64 has no numbers for."""
    if not all(bool(K.isfinite().all()) for K in kernels):
        raise DataError(
            f"kernels of '{name}' that leave the range of float64",
            expected="inputs, constants C and Lambda, and xi of moderate size",
            do="make the largest of them smaller",
        )


def _side(spec: KernelSpec, name: str) -> Side:
    if spec.input_kernel is not None:
        G0, T = input_kernel(spec)
        return Side(D=len(G0) // T, T=T, G0=G0)
    if spec.stem == "vision":
        x = patches(spec)
        return Side(D=x.shape[0], T=x.shape[1], G0=patch_kernel(x))
    words = tokens(spec, name)
    return Side(
        D=words.shape[0],
        T=words.shape[1],
        G0=token_kernel(words, spec.pad),
        real=real(spec, words),
        words=words,
    )
