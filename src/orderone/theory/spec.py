"""What is to be predicted: network, constants, and how well; impossible ones are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, PositiveInt, model_validator
from torch import Tensor

from orderone.core.errors import ConfigError
from orderone.core.settings import Settings
from orderone.theory.activation import activation
from orderone.theory.head import Pool
from orderone.theory.placement import Placement

Constant = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def as_tuple(given: object) -> object:
    """A list, all that TOML has, as the tuple that a frozen setting is."""
    return tuple(cast("list[object]", given)) if isinstance(given, list) else given


MOST_SAMPLES = 1 << 30
MOST_BLOCKS = 10_000
"""Of any kind: more would run for days."""
Count = Annotated[int, Field(ge=0, le=MOST_BLOCKS)]


class Strict(Settings):
    """A number in quotes is none, and neither is true."""

    model_config = ConfigDict(strict=True)


class InitialConstants(Strict):
    """C_G of [DYZ23] eqs. (1.25)–(1.33)."""

    patch: Constant = 1.0
    word: Constant = 1.0
    position: Constant = 1.0
    class_token: Constant = 1.0
    Q: Constant = 1.0
    K: Constant = 1.0
    V: Constant = 1.0
    U: Constant = 1.0
    W: Constant = 1.0
    X: Constant = 1.0
    head: Constant = 1.0
    """Of a head that is not tied; a tied one is W^WE and has C_WE."""


class LearningRates(InitialConstants):
    """Λ_G of [DYZ23] eqs. (1.99)–(1.107), or with AdamW Λ̃_G of eqs. (1.108)–(1.116)."""

    head_bias: Constant = 1.0


class KernelSpec(Strict):
    """A network at initialisation, at infinite width, and its inputs."""

    stem: Literal["vision", "language"]
    inputs: Any = None
    """D × T × n_patch numbers, or D × T whole numbers: tensor, array, nested list or .npy file."""
    input_kernel: Any = None
    """In place of inputs, their kernel G^(0): D·T × D·T numbers, sample-major."""
    positions: PositiveInt | None = None
    """T of ``input_kernel``."""
    targets: Any = None
    """D × T' tokens of the decoder."""
    encoders: Count = 1
    """Pairs of attention and MLP."""
    decoders: Count = 0
    """Triplets of causal attention, mixed attention and MLP."""
    causal: bool = False
    activation: str | Callable[[Tensor], Tensor] = "gelu"
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    pool: Pool = "none"
    """What the head reads: every position, their mean, or the class token."""
    placement: Placement = "pre"
    final_norm: bool | None = None
    """A layer norm after the last block of either side; None: with placement pre alone."""
    stem_norm: bool = False
    """A layer norm right after the positional embedding, as in BART."""
    class_token: bool = False
    """A class token before the patches."""
    head_tied: bool | None = None
    """The head is (W^WE)ᵀ; None: with stem language."""
    xi: Finite | Annotated[tuple[Finite, ...], BeforeValidator(as_tuple)] = 1.0
    """ξ of the skip, [DYZ23] eq. (1.5): one number, or one a block."""
    n_vocab: PositiveInt | None = None
    """Words in the vocabulary; None: as many as the inputs show."""
    pad: Annotated[int, Field(ge=0)] | None = None
    """[pad]: its row of W^WE is zero, and no softmax sees it."""
    C: InitialConstants = InitialConstants()
    Lambda: LearningRates = LearningRates()
    optimizer: Literal["sgd", "adamw"] = "sgd"
    by_group: bool = False
    """Also Θ of every parameter group, at several times the cost."""
    head_dim: PositiveInt | None = None
    """C = n/H of the scores; None: C → ∞, where they are Gaussian."""
    samples: Annotated[int, Field(gt=0, le=MOST_SAMPLES)] = 200_000
    """Draws of each attention block, all recursions together."""
    target_error: Annotated[float, Field(gt=0)] | None = None
    """Instead of ``samples``: the largest standard error of the head's G and Θ, each relative to
    its largest entry."""
    recursions: Annotated[int, Field(ge=4, le=MOST_BLOCKS)] = 32
    """Independent recursions, whose spread gives the standard errors."""
    seed: Annotated[int, Field(ge=0)] = 0
    memory_mib: PositiveInt = 256

    @property
    def splits(self) -> bool:
        """Θ is kept apart by group: asked for, or needed for AdamW's |g|."""
        return self.by_group or self.optimizer == "adamw"

    @property
    def tied(self) -> bool:
        return self.stem == "language" if self.head_tied is None else self.head_tied

    @property
    def has_final_norm(self) -> bool:
        return self.placement == "pre" if self.final_norm is None else self.final_norm

    @property
    def input_group(self) -> str:
        return "patch" if self.stem == "vision" else "word"

    @property
    def head_group(self) -> str:
        return "word" if self.tied else "head"

    @property
    def block_xi(self) -> tuple[float, ...]:
        """ξ of every block, the encoder's first."""
        count = 2 * self.encoders + 3 * self.decoders
        return self.xi if isinstance(self.xi, tuple) else (self.xi,) * count

    def constants(self, group: str) -> float:
        """C_G."""
        return float(getattr(self.C, group))

    def rate(self, group: str) -> float:
        """Λ_G."""
        return float(getattr(self.Lambda, group))

    def replace(self, **changes: Any) -> KernelSpec:
        """The same with other settings, checked again."""
        settings = {name: getattr(self, name) for name in self.model_fields_set}
        return KernelSpec(**{**settings, **changes})

    @model_validator(mode="after")
    def _possible(self) -> KernelSpec:
        if isinstance(self.activation, str):
            activation(self.activation)
        count = 2 * self.encoders + 3 * self.decoders
        if len(self.block_xi) != count:
            raise ConfigError(
                f"{len(self.block_xi)} skip coefficients xi",
                expected=f"one number, or one for each of the {count} blocks",
                do="give as many as there are blocks",
            )
        for what, wrong, expected, do in self._contradictions():
            if wrong:
                raise ConfigError(what, expected=expected, do=do)
        return self

    def _contradictions(self) -> list[tuple[str, bool, str, str]]:
        vision = self.stem == "vision"
        set_C = self.C.model_fields_set | self.Lambda.model_fields_set
        other = "word" if vision else "patch"
        return [
            (
                f"{other} in [C] or [Lambda] with stem '{self.stem}'",
                other in set_C,
                self.input_group,
                f"rename it to {self.input_group}",
            ),
            (
                "decoders with stem 'vision'",
                vision and self.decoders > 0,
                "stem 'language' for an encoder–decoder",
                "set decoders = 0",
            ),
            (
                "inputs together with an input_kernel, or neither",
                (self.inputs is None) == (self.input_kernel is None),
                "one of them",
                "give inputs, or input_kernel and positions",
            ),
            (
                "input_kernel and positions",
                (self.positions is None) != (self.input_kernel is None)
                or (self.input_kernel is not None and self.decoders > 0),
                "both or neither, and no decoders",
                "give both, or inputs",
            ),
            (
                f"{self.decoders} decoders {'without' if self.targets is None else 'with'} targets",
                (self.decoders > 0) != (self.targets is not None),
                "targets exactly where there are decoders",
                "give both or neither",
            ),
            (
                "a causal encoder below a decoder",
                self.causal and self.decoders > 0,
                "causal = false: the decoder alone is causal",
                "remove causal",
            ),
            (
                f"class_token or pool = 'class' with stem '{self.stem}', class_token = "
                f"{str(self.class_token).lower()}",
                (self.class_token and not vision)
                or (self.pool == "class" and not self.class_token),
                "stem 'vision' and class_token = true",
                "change one of them",
            ),
            (
                "a tied head with stem 'vision'",
                vision and self.tied,
                "a head of its own",
                "remove head_tied",
            ),
            (
                "pad or n_vocab with stem 'vision'",
                vision and not (self.pad is None and self.n_vocab is None),
                "neither",
                "remove them",
            ),
        ]


def read_spec(path: str | Path) -> KernelSpec:
    """The spec of a TOML file; the files that it names are looked for beside it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"'{path}' cannot be read: {why}", expected="a TOML file", do="check the path and text"
        ) from error
    for name in ("inputs", "targets", "input_kernel"):
        if isinstance(settings.get(name), str):
            settings[name] = path.parent / settings[name]
    return parse_spec(settings)


def parse_spec(settings: Mapping[str, Any]) -> KernelSpec:
    """The spec of a mapping; callables are for Python alone."""
    if "activation" in settings and not isinstance(settings["activation"], str):
        raise ConfigError(
            f"activation = {settings['activation']!r}", expected="a name", do="write a string"
        )
    return KernelSpec(**{str(name): value for name, value in settings.items()})


def rates_of(spec: KernelSpec) -> dict[str, float]:
    """Λ_G of every group."""
    return {group: spec.rate(group) for group in LearningRates.model_fields}
