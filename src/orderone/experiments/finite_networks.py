"""Networks of finite width of a ``KernelSpec``, and the kernels that are measured on them.

The prediction has its network in letters, a measurement needs a real one: our own models, their
weights and learning-rate factors from a plan at s = 0, so that nothing of the theory takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from orderone.core.errors import ConfigError
from orderone.core.generators import generator_for
from orderone.models.attention import Context
from orderone.models.build import AnyTransformer, build
from orderone.models.config import EncoderDecoderConfig, LanguageConfig, VisionConfig
from orderone.models.mask import mask
from orderone.models.vision import VisionTransformer
from orderone.probes.kernel import kernel
from orderone.probes.tangent import Tangent, tangent
from orderone.scaling.plan import Plan, plan
from orderone.theory.inputs import patches, real, tokens
from orderone.theory.spec import InitialConstants, KernelSpec

OUTPUTS = 8
"""Output indices i that Θ is averaged over: by symmetry any of them will do."""
_OURS = {"class-token": "class_token", "bias": "head_bias"}
"""The theory's name of a group, where a plan has another."""

Key = tuple[str, int]
"""G, F, Theta or "Theta of" a group, and the place of the block."""
Measured = dict[Key, Float64[Tensor, "a a"]]
"""Kernels of one network."""


@dataclass(frozen=True, kw_only=True)
class FiniteNetwork:
    """The spec's network at one width; ``measure`` draws its weights anew."""

    spec: KernelSpec
    model: AnyTransformer
    inputs: Mapping[str, Tensor]
    plan: Plan
    H: int

    @classmethod
    def of(cls, spec: KernelSpec, n: int, heads: int | None = None) -> FiniteNetwork:
        """Of width n, with the spec's channels a head or else so many ``heads``."""
        H = head_count(spec, n, heads)
        model = _model(spec, n, H).double().eval()
        _without_pad_(model, spec.pad)
        made = plan(model, strategy="neural-tangent", constants=constants(spec))
        return cls(spec=spec, model=model, inputs=_inputs(spec, model), plan=made, H=H)

    @property
    def blocks(self) -> int:
        """Stems, residual paths and head."""
        config = self.model.config
        return config.block_count + 2 + isinstance(config, EncoderDecoderConfig)

    def forward(self, seed: int) -> Measured:
        """G and F of every block, from one forward pass."""
        self.plan.initialize_(seed=seed, model=self.model)
        found: Measured = {}
        seen = kernel(self.model, self.inputs, epsilon=self.spec.epsilon, output=self.read)
        for place, each in enumerate(seen):
            found["G", place], found["F", place] = each.G, each.F
        return found

    def measure(self, seed: int) -> Measured:
        """G, F and Θ of every block, and Θ of every group at the head where the spec asks."""
        found = self.forward(seed)
        head = self.blocks - 1
        at_head = self._tangent()
        found["Theta", head] = at_head.total
        if self.spec.splits:
            for group, Theta in at_head.groups.items():
                found[f"Theta of {group}", head] = Theta
        factors = self._factors(at_head.gradient_size)
        for place in range(head):
            found["Theta", place] = self._hidden_tangent(place, factors)
        return found

    def gradient_sizes(self, seed: int) -> dict[str, float]:
        """|g| of every group: r.m.s. of ∂z_i/∂θ_μ over its parameters, outputs and inputs."""
        self.plan.initialize_(seed=seed, model=self.model)
        return dict(self._tangent().gradient_size)

    def read(self, raw: Tensor) -> Tensor:
        """The outputs that are compared: pooled, and of words that no input shows."""
        outputs = raw[..., -self.model.config.n :]
        if self.spec.pool == "none":
            return outputs
        return outputs.mean(1) if self.spec.pool == "mean" else outputs[:, 0]

    def _tangent(self) -> Tangent:
        optimizer = self.spec.optimizer
        groups = {
            row.name: (group, self.spec.rate(group) * row.factor(optimizer))
            for row, group in self._rows()
        }
        return tangent(
            self.model,
            self.inputs,
            groups=groups,
            optimizer=optimizer,
            output=lambda raw: self.read(raw)[..., :OUTPUTS],
        )

    def _factors(self, sizes: Mapping[str, float]) -> dict[str, tuple[str, float]]:
        """λ of every parameter; AdamW's divided by |g| of the network's output."""
        optimizer = self.spec.optimizer
        size = sizes if optimizer == "adamw" else dict.fromkeys(sizes, 1.0)
        return {
            row.name: (group, self.spec.rate(group) * row.factor(optimizer) / (size[group] or 1.0))
            for row, group in self._rows()
        }

    def _hidden_tangent(self, place: int, factors: Mapping[str, tuple[str, float]]) -> Tensor:
        """Θ of z at a block, all groups together."""
        groups = {f"model.{name}": ("all", factor) for name, (_, factor) in factors.items()}
        return tangent(_UpTo(self.model, place), self.inputs, groups=groups).total

    def _rows(self) -> list[tuple[Any, str]]:
        return [(row, _OURS.get(row.role, row.role)) for row in self.plan.rows]


def network_seed(seed: int, n: int, index: int) -> int:
    """Of a network that shares its numbers with none of another width or index."""
    return generator_for(seed, f"network {index} of width {n}").initial_seed() % 2**63


def constants(spec: KernelSpec) -> dict[str, float]:
    """C_G by the plan's names of groups."""
    plans = {theirs: ours for ours, theirs in _OURS.items()}
    return {plans.get(g, g): spec.constants(g) for g in InitialConstants.model_fields}


def head_count(spec: KernelSpec, n: int, heads: int | None = None) -> int:
    """H = n/C at the spec's channels a head, or the given number."""
    C = spec.head_dim
    if (C is None) == (heads is None):
        raise ConfigError(
            "a number of heads beside head_dim" if C else "neither heads nor head_dim",
            expected="one of them: head_dim channels a head, or heads and C → ∞",
            do="leave one out",
        )
    H = n // C if C is not None else heads or 0
    if H < 1 or n % H or (C is not None and n % C):
        what = f"{heads} heads" if C is None else f"heads of {C} channels"
        raise ConfigError(
            f"width {n} with {what}",
            expected="widths that the heads divide",
            do="choose other widths, or change heads or head_dim",
        )
    return H


def measurable(spec: KernelSpec) -> KernelSpec:
    """The spec as it is predicted for a comparison; one without a network of ours is refused.

    AdamW's |g| of a word table is over the rows that have a gradient: those shown, and where the
    head is tied all of them, so the prediction is told how many.
    """
    missing = [
        ("an input_kernel without inputs", spec.inputs is None),
        ("stem_norm with stem 'vision'", spec.stem_norm and spec.stem == "vision"),
        ("a spec without blocks", spec.encoders == 0),
    ]
    for what, wrong in missing:
        if wrong:
            raise ConfigError(
                what,
                expected="a network of ours to measure",
                do="change the spec, or only predict: orderone kernels",
            )
    if spec.stem == "language" and spec.optimizer == "adamw" and spec.tied:
        raise ConfigError(
            "AdamW with a tied head",
            expected="a head of its own: a tied one's |g| mixes words with outputs, as the "
            "vocabulary grows with the width",
            do='set head_tied = false, or optimizer = "sgd"',
        )
    if spec.n_vocab is not None and spec.optimizer == "adamw":
        tokens(spec)
        return spec.replace(n_vocab=None)
    return spec


class _UpTo(nn.Module):
    """A model's z at a block, of a few embedding indices."""

    def __init__(self, model: AnyTransformer, place: int) -> None:
        super().__init__()
        self.model = model
        self.place = place

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model.trace(**inputs).hidden[self.place][..., :OUTPUTS]


def _inputs(spec: KernelSpec, model: AnyTransformer) -> dict[str, Tensor]:
    """Arguments of the model, by name."""
    if isinstance(model, VisionTransformer):
        return {"images": patches(spec).mT[:, :, None]}
    words = tokens(spec)
    own = {"tokens": words, "real": real(spec, words)}
    if spec.decoders:
        target = tokens(spec, "targets")
        own = {"source": words, "source_real": own["real"]}
        own |= {"target": target, "target_real": real(spec, target)}
    return {name: value for name, value in own.items() if value is not None}


def _model(spec: KernelSpec, n: int, H: int) -> AnyTransformer:
    shared: dict[str, Any] = {
        "n": n,
        "H": H,
        "encoders": spec.encoders,
        "activation": spec.activation,
        "placement": spec.placement,
        "final_norm": spec.final_norm,
        "epsilon": spec.epsilon,
        "xi": spec.xi,
    }
    if spec.stem == "vision":
        return _vision(spec, shared)
    words = tokens(spec)
    shown = words.flatten() if not spec.decoders else _all_words(spec)
    # A tied head's outputs are words: n of them that no input shows, which have no contact term.
    rows = max(int(shown.max()) + 1, spec.n_vocab or 1) + n * spec.tied
    shared |= {
        "n_vocab": rows,
        "T": words.shape[1],
        "pad": spec.pad,
        "stem_norm": spec.stem_norm,
        "head_tied": spec.tied,
        "n_out": None if spec.tied else n,
        "head_bias": not spec.tied,
    }
    if not spec.decoders:
        return build(LanguageConfig(**shared, causal=spec.causal))
    return _encoder_decoder(spec, shared)


def _encoder_decoder(spec: KernelSpec, shared: dict[str, Any]) -> AnyTransformer:
    """Each side has the positions of its own sequences: what is never read has no |g|."""
    model = build(EncoderDecoderConfig(**shared, decoders=spec.decoders))
    model.get_submodule("decoder.stem").position = nn.Embedding(
        tokens(spec, "targets").shape[1], shared["n"]
    )
    return model


def _without_pad_(model: AnyTransformer, pad: int | None) -> None:
    """The theory's [pad] has no embedding, and learns none."""
    for name in ("word", "stem.word"):
        word = dict(model.named_modules()).get(name)
        if isinstance(word, nn.Embedding):
            word.padding_idx = pad


class CausalVisionTransformer(VisionTransformer):
    """Patches that attend to none after them: a spec may say so, a preset never does."""

    def context(self) -> Context:
        return Context(mask=mask(None, causal=True))


def _vision(spec: KernelSpec, shared: dict[str, Any]) -> AnyTransformer:
    """Patches of a D × T × n_patch array as the pixels of an image of height 1."""
    _, T, n_patch = patches(spec).shape
    make = CausalVisionTransformer if spec.causal else VisionTransformer
    model = make(
        VisionConfig(
            **shared,
            image_size=1,
            patch=1,
            channels=n_patch,
            n_out=shared["n"],
            stem="class-token" if spec.class_token else "patch",
            head="per-token",
        )
    )
    model.stem.size = (n_patch, 1, T)
    model.stem.position = nn.Embedding(T + spec.class_token, shared["n"])
    return model


def _all_words(spec: KernelSpec) -> Tensor:
    return torch.cat([tokens(spec).flatten(), tokens(spec, "targets").flatten()])
