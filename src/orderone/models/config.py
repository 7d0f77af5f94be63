"""What a reference transformer is made of, in the papers' letters; impossible ones are refused."""

from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from orderone.core.errors import ConfigError
from orderone.core.settings import Settings
from orderone.models.activation import activation_name, require_elementwise


def _whole(given: Any) -> Any:
    """A whole number of another library as Python's own; anything else as it is."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        return given
    return int(given)


def _tuple(given: Any) -> Any:
    """Files have lists only."""
    return tuple(cast("list[Any]", given)) if isinstance(given, list) else given


Size = Annotated[int, BeforeValidator(_whole), Field(gt=0, lt=2**31)]
Placement = Literal["pre", "branch", "post"]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
AnyConfig = TypeVar("AnyConfig", bound="TransformerConfig")


class TransformerConfig(Settings):
    """What all our transformers share. ``M`` and ``d_ff`` say one thing: give either.

    Strict: a number in quotes is none, and neither is true.
    """

    model_config = ConfigDict(strict=True)

    n: Size
    """Embedding width."""
    H: Size
    """Heads, of C = n/H channels."""
    encoders: Size
    """Pairs of an attention and an MLP block."""
    M: Annotated[float, Field(gt=0)] = 4.0
    """MLP multiplier; follows ``d_ff`` where that is given."""
    d_ff: Size | None = None
    """Width of the MLP, M·n where not given."""
    activation: Annotated[str, BeforeValidator(activation_name)] = "gelu"
    """σ: a name, ``package.module:function``, or an importable function."""
    placement: Placement = "pre"
    """pre z + R(LN(z)), branch z + LN(R(z)), post LN(z + R(z))."""
    final_norm: bool | None = None
    """A layer norm after the last block, s^(L−1) = LN(z^(L−1)); None: with placement pre alone."""
    bias: bool = False
    """Biases in attention and MLP."""
    affine: bool = False
    """Trained gains and biases in the layer norms."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """ε of the layer norms."""
    attention_power: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Scores are divided by C to this power: ½ in [DYZ23] eq. (1.16), 1 in maximal update."""
    xi: Annotated[Finite | tuple[Finite, ...], BeforeValidator(_tuple)] = 1.0
    """ξ of the skip, [DYZ23] eq. (1.5): one number, or one a block."""
    dropout: Probability = 0.0
    """After the embeddings and after every residual path."""
    attention_dropout: Probability = 0.0
    """On the attention weights."""
    head_bias: bool = False
    """b^head of an untied head."""
    output_multiplier: Finite = 1.0
    """N_rescale of [DYZ23] eq. (1.24)."""
    init_std: Annotated[float, Field(gt=0)] | None = 0.02
    """Weights normal with this deviation, biases 0; None: PyTorch's defaults."""

    @property
    def C(self) -> int:
        """Channels of a head."""
        return self.n // self.H

    @property
    def mlp_width(self) -> int:
        """Rows of W: M·n."""
        return self.d_ff if self.d_ff is not None else round(self.M * self.n)

    @property
    def has_final_norm(self) -> bool:
        return self.placement == "pre" if self.final_norm is None else self.final_norm

    @property
    def block_count(self) -> int:
        """Residual paths, ℓ = 2 … L−1."""
        return 2 * self.encoders

    @property
    def block_xi(self) -> tuple[float, ...]:
        """ξ of every block."""
        return self.xi if isinstance(self.xi, tuple) else (self.xi,) * self.block_count

    def replace(self: AnyConfig, **changes: Any) -> AnyConfig:
        """The same configuration with other settings, checked again."""
        if "M" in changes and "d_ff" not in changes:
            changes = {"d_ff": None, **changes}  # the multiplier asked for replaces a width
        return type(self)(**{**self.model_dump(exclude_unset=True), **changes})

    @model_validator(mode="after")
    def _possible(self) -> "TransformerConfig":
        if self.n % self.H:
            raise ConfigError(
                f"n = {self.n} with H = {self.H} heads",
                expected="n divisible by H",
                do=f"take n = {self.H * max(1, round(self.n / self.H))} or another H",
            )
        self._settle_multiplier()
        if len(self.block_xi) != self.block_count:
            raise ConfigError(
                f"{len(self.block_xi)} skip coefficients xi",
                expected=f"one number, or one for each of the {self.block_count} blocks",
                do="give as many as there are blocks",
            )
        require_elementwise(self.activation)
        return self

    def _settle_multiplier(self) -> None:
        if self.d_ff is None:
            if abs(self.M * self.n - self.mlp_width) > 1e-6 or self.mlp_width < 1:
                raise ConfigError(
                    f"M = {self.M:g} at n = {self.n}, an MLP of width {self.M * self.n:g}",
                    expected="a whole number M·n",
                    do="give the width as d_ff",
                )
        elif "M" not in self.model_fields_set:
            # Not a setting of the user's: ``replace(n=...)`` must be free to settle it anew.
            object.__setattr__(self, "M", self.d_ff / self.n)
        elif abs(self.M * self.n - self.d_ff) > 1e-6:
            raise ConfigError(
                f"M = {self.M:g} and d_ff = {self.d_ff} at n = {self.n}",
                expected=f"d_ff = M·n = {self.M * self.n:g}",
                do="give only one of M and d_ff",
            )


class VisionConfig(TransformerConfig):
    """Vision transformer, [DYZ23] eq. (1.6)–(1.8), (1.22)–(1.23)."""

    kind: Literal["vision"] = "vision"
    image_size: Size = 224
    patch: Size = 16
    channels: Size = 3
    n_out: Size = 1000
    stem: Literal["patch", "class-token", "convolutions"] = "patch"
    head: Literal["mean", "per-token", "class-token"] = "mean"
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    head_bias: bool = True

    @property
    def n_patch(self) -> int:
        """Numbers in a patch, the fan-in of W^patch."""
        return self.channels * self.patch**2

    @property
    def T(self) -> int:
        """Tokens: patches, and the class token where there is one."""
        return (self.image_size // self.patch) ** 2 + (self.stem == "class-token")

    @model_validator(mode="after")
    def _possible_image(self) -> "VisionConfig":
        if self.image_size % self.patch:
            raise ConfigError(
                f"image_size = {self.image_size} with patch = {self.patch}",
                expected="image_size divisible by patch",
                do=f"take image_size = {self.patch * max(1, self.image_size // self.patch)}",
            )
        if self.head == "class-token" and self.stem != "class-token":
            raise ConfigError(
                f"head 'class-token' with stem '{self.stem}'",
                expected="stem 'class-token'",
                do="set stem = 'class-token', or head = 'mean'",
            )
        if self.stem == "convolutions" and self.patch & (self.patch - 1):
            raise ConfigError(
                f"stem 'convolutions' with patch = {self.patch}",
                expected="a power of 2, since each convolution halves the image",
                do="take patch = 8 or 16",
            )
        return self


class WordsConfig(TransformerConfig):
    """What models of words share."""

    n_vocab: Size
    T: Size
    """Positions: the longest sequence."""
    pad: Annotated[int, BeforeValidator(_whole), Field(ge=0)] | None = None
    """Index of [pad], whose row of W^WE is zero at initialisation."""
    stem_norm: bool = False
    """A layer norm right after the positional embedding."""
    head_tied: bool = True
    """The head is (W^WE)ᵀ; else a W of its own."""
    n_out: Size | None = None
    """Outputs of an untied head, n_vocab where not given."""

    @property
    def outputs(self) -> int:
        return self.n_vocab if self.n_out is None else self.n_out

    @model_validator(mode="after")
    def _possible_words(self) -> "WordsConfig":
        if self.pad is not None and self.pad >= self.n_vocab:
            raise ConfigError(
                f"pad = {self.pad} with n_vocab = {self.n_vocab}",
                expected=f"0 ≤ pad < {self.n_vocab}",
                do="count [pad] into the vocabulary",
            )
        if self.head_tied and (self.outputs != self.n_vocab or self.head_bias):
            raise ConfigError(
                f"a tied head with n_out = {self.outputs}, head_bias = {self.head_bias}",
                expected=f"n_out = n_vocab = {self.n_vocab} and no bias",
                do="set head_tied = false",
            )
        return self


class LanguageConfig(WordsConfig):
    """Language transformer: causal decoder-only, or bidirectional encoder; [DYZ23] eq. (1.9)."""

    kind: Literal["language"] = "language"
    causal: bool = True
    mask: Literal["infinite", "zero"] = "infinite"
    """"zero" multiplies future scores by 0 instead of removing them, so that they still take
    weight: the bug of the original code of [MRGSS21], kept to reproduce what it computed."""

    @model_validator(mode="after")
    def _possible_mask(self) -> "LanguageConfig":
        if self.mask == "zero" and not self.causal:
            raise ConfigError(
                "mask 'zero' with causal = false",
                expected="causal = true: without a future there are no scores to multiply by 0",
                do="set causal = true, or mask = 'infinite'",
            )
        return self


class EncoderDecoderConfig(WordsConfig):
    """BART-like encoder–decoder, [DYZ23] §II.2, eq. (2.2)–(2.4)."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    decoders: Size
    """Triplets of an attention, a mixed-attention and an MLP block."""
    stem_norm: bool = True

    @property
    def block_count(self) -> int:
        return 2 * self.encoders + 3 * self.decoders


Config = VisionConfig | LanguageConfig | EncoderDecoderConfig
CONFIGS: dict[str, type[Config]] = {
    "vision": VisionConfig,
    "language": LanguageConfig,
    "encoder-decoder": EncoderDecoderConfig,
}


def parse_config(cls: type[AnyConfig], mapping: Mapping[str, Any]) -> AnyConfig:
    """The configuration that a file or a command line describes; one line says what is wrong."""
    return cls(**{str(name): value for name, value in mapping.items()})


def read_config(mapping: Mapping[str, Any]) -> Config:
    """The configuration of the ``kind`` that ``mapping`` names, as ``model_dump`` wrote it."""
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in CONFIGS:
        raise ConfigError(
            f"kind = {kind!r} of model",
            expected=f"one of {', '.join(CONFIGS)}",
            do="add it to the model's configuration",
        )
    return parse_config(CONFIGS[kind], mapping)
