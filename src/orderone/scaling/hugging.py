"""Transformers' models from a local configuration: class and settings, no weights, no hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from torch import nn

from orderone.core.errors import ConfigError, MissingPackageError

_HEADS = (
    *("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING"),
    *("MODEL_FOR_MASKED_LM_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    *("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "MODEL_MAPPING"),
)
"""Auto classes in the order tried; a decoder tries causal language models first."""


def read_transformers_config(path: Path) -> Any:
    """The configuration in a folder or file; what it says of code and of the hub is not read."""
    file = path / "config.json" if path.is_dir() else path
    settings = _json_object(file)
    mapping = _known_models()
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in mapping:
        raise ConfigError(
            f"model_type {kind!r} in '{file}'",
            expected="a model type that the installed transformers knows, such as gpt2 or bert",
            do="correct the file, upgrade transformers, or name package.module:factory",
        )
    # Names of code to import and of where to fetch it: nothing here follows them.
    for name in ("auto_map", "_name_or_path", "custom_pipelines"):
        settings.pop(name, None)
    try:
        return mapping[kind].from_dict(settings)
    except Exception as error:  # each model's configuration raises what it likes
        raise ConfigError(
            f"'{file}' is no configuration of {kind} ({error})",
            expected="the settings that transformers wrote",
            do="correct the file",
        ) from error


def model_class(config: Any) -> type[nn.Module]:
    """The class that ``architectures`` names; else the one with a head that suits the type."""
    import transformers

    for name in cast("list[str]", getattr(config, "architectures", None) or []):
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    from transformers.models.auto import modeling_auto

    tried = list(_HEADS)
    if getattr(config, "is_encoder_decoder", False) is not True:
        tried = [name for name in tried if "SEQ" not in name]
    if getattr(config, "is_decoder", False) is True:
        tried.sort(key=lambda name: "CAUSAL" not in name)
    for name in tried:
        mapping = getattr(modeling_auto, name, {})
        if type(config) in mapping:
            return cast("type[nn.Module]", mapping[type(config)])
    raise ConfigError(
        f"a {type(config).__name__}, for which transformers has no model",
        expected="'architectures' in the configuration",
        do="add it, for example architectures: ['GPT2LMHeadModel']",
    )


def _known_models() -> Any:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise MissingPackageError(
            "transformers", needed_for="models in Hugging Face format"
        ) from error
    return CONFIG_MAPPING


def _json_object(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"'{file}' cannot be read: {error.strerror or error}",
            expected="a transformers config.json, or a folder with one",
            do="check the path",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"'{file}' is not JSON ({error})",
            expected="a transformers configuration",
            do="correct the file",
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"'{file}' holds a JSON {type(settings).__name__}",
            expected="an object of settings",
            do="name the model's config.json",
        )
    return cast("dict[str, Any]", settings)
