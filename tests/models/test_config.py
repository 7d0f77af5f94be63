import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from orderone.core.errors import ConfigError
from orderone.models import (
    EncoderDecoderConfig,
    LanguageConfig,
    VisionConfig,
    parse_config,
    read_config,
)

WORDS: dict[str, Any] = {"n": 24, "H": 3, "encoders": 2, "n_vocab": 31, "T": 12}
PIXELS: dict[str, Any] = {"n": 24, "H": 3, "encoders": 2}

REFUSALS: list[tuple[type[Any], dict[str, Any], str]] = [
    (LanguageConfig, {"H": 5}, "n = 24 with H = 5 heads; expected n divisible by H; take n = 25"),
    (LanguageConfig, {"M": 0.3}, "M = 0.3 at n = 24, an MLP of width 7.2"),
    (
        LanguageConfig,
        {"M": 4, "d_ff": 90},
        "M = 4 and d_ff = 90 at n = 24; expected d_ff = M·n = 96",
    ),
    (LanguageConfig, {"xi": [1.0, 0.5]}, "2 skip coefficients xi; expected one number, or .* 4 "),
    (LanguageConfig, {"xi": float("nan")}, "xi = nan"),
    (LanguageConfig, {"activation": "gleu"}, "activation 'gleu'; expected one of gelu, gelu-tanh"),
    (LanguageConfig, {"activation": "torch.nn:nothing"}, "activation 'torch.nn:nothing'"),
    (LanguageConfig, {"activation": "no.such.module:f"}, "activation 'no.such.module:f'"),
    (LanguageConfig, {"activation": lambda w: w}, "expected a function that can be imported"),
    (
        LanguageConfig,
        {"placement": "sandwich"},
        "placement = 'sandwich'.*'pre', 'branch' or 'post'",
    ),
    (LanguageConfig, {"mask": "zero", "causal": False}, "mask 'zero' with causal = false"),
    (LanguageConfig, {"pad": 31}, "pad = 31 with n_vocab = 31; expected 0 ≤ pad < 31"),
    (LanguageConfig, {"n_out": 7}, "a tied head with n_out = 7.*expected n_out = n_vocab = 31"),
    (LanguageConfig, {"head_bias": True}, "a tied head with .* head_bias = True"),
    (LanguageConfig, {"dropout": 1.0}, "dropout = 1.0.*less than 1"),
    (LanguageConfig, {"n": 0}, "n = 0 .*greater than 0"),
    (LanguageConfig, {"n": "wide"}, "n = 'wide' .*valid integer"),
    (LanguageConfig, {"n": "24"}, "n = '24' .*valid integer"),
    (LanguageConfig, {"n": True, "H": 1}, "n = True .*valid integer"),
    (LanguageConfig, {"n": 3 * 10**30}, "n = 3000.*less than 2147483648"),
    (LanguageConfig, {"bias": "off"}, "bias = 'off' .*valid boolean"),
    (
        LanguageConfig,
        {"activation": "torch:mean"},
        "'torch:mean', which makes shape .* of a tensor",
    ),
    (LanguageConfig, {"activation": "math:sin"}, "'math:sin', which makes an error"),
    (LanguageConfig, {"activation": "builtins:type"}, "'builtins:type', which makes "),
    (LanguageConfig, {"epsilon": -1, "n": 0}, "and 1 more"),
    (LanguageConfig, {"width": 3}, "unknown setting 'width' of LanguageConfig; expected one of n,"),
    (EncoderDecoderConfig, {}, "no 'decoders' for EncoderDecoderConfig"),
    (EncoderDecoderConfig, {"decoders": 1, "xi": [1.0] * 6}, "6 skip coefficients xi; .* 7 blocks"),
    (VisionConfig, {"image_size": 225}, "image_size = 225 with patch = 16; .*image_size = 224"),
    (VisionConfig, {"head": "class-token"}, "head 'class-token' with stem 'patch'"),
    (VisionConfig, {"stem": "convolutions", "patch": 7}, "patch = 7; expected a power of 2"),
]


@pytest.mark.parametrize(("cls", "settings", "said"), REFUSALS)
def test_impossible_configurations_are_refused_in_one_line(
    cls: type[Any], settings: dict[str, Any], said: str
) -> None:
    settings = {**(PIXELS if cls is VisionConfig else WORDS), **settings}
    for make in (lambda: cls(**settings), lambda: parse_config(cls, settings)):
        with pytest.raises(ConfigError, match=said) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        LanguageConfig(**WORDS, d_ff=40, xi=(1.0, 0.5, 1.0, 0.5), activation=functional.softplus),
        VisionConfig(**PIXELS, M=2.5, image_size=64),
        EncoderDecoderConfig(**WORDS, decoders=3, pad=0, init_std=None),
    ],
)
def test_a_configuration_survives_json(config: Any) -> None:
    assert read_config(json.loads(config.model_dump_json())) == config


def test_reading_asks_for_a_known_kind() -> None:
    for mapping in ({}, {"kind": "audio"}, {"kind": ["language"]}):
        with pytest.raises(ConfigError, match="expected one of vision, language, encoder-decoder"):
            read_config(mapping)


def test_whole_numbers_of_other_libraries_are_whole_numbers() -> None:
    config = LanguageConfig(**{**WORDS, "n": np.int64(24), "pad": np.int32(3)})
    assert config == LanguageConfig(**WORDS, pad=3)
    assert (type(config.n), type(config.pad)) == (int, int)


def test_an_importable_function_is_an_activation() -> None:
    by_function = LanguageConfig(**WORDS, activation=torch.tanh)
    assert by_function.activation == "tanh"
    assert LanguageConfig(**WORDS, activation="torch.nn.functional:softplus").activation


def test_width_and_multiplier_follow_each_other() -> None:
    assert LanguageConfig(**WORDS, d_ff=36).M == 1.5
    wide = LanguageConfig(**WORDS, M=2)
    assert (wide.mlp_width, wide.replace(n=30).mlp_width) == (48, 60)
    assert LanguageConfig(**WORDS, d_ff=36).replace(n=30).M == 1.2
    with pytest.raises(ConfigError, match="n = 25 with H = 3"):
        wide.replace(n=25)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        LanguageConfig(**WORDS).n = 48


def test_a_file_cannot_make_us_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('executed')\ndef f(w): return w\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"activation 'planted:f'.*of an imported module"):
        read_config({"kind": "language", **WORDS, "activation": "planted:f"})
