"""How a run is run again, as its folder tells: the command, and the file that it reads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from orderone.report.told import Told

_ARGUMENTS = {
    **dict.fromkeys(("plan", "check", "transfer", "homogeneity", "saturation", "heads"), "model"),
    "trajectory": "source",
}
"""Commands whose settings are their options, and the setting that is their argument."""


def again(run: Told) -> str:
    """Lines to be copied into a terminal; the file's, where there is one, first."""
    command, config = run.command, run.config
    if command == "train":
        return _with_file("train", "run.toml", config)
    if command in ("search", "sweep") and isinstance(config.get("run"), dict):
        table = {**config["run"], command: config.get(command, {})}
        return _with_file(command, f"{command}.toml", table)
    if command == "kernels" and isinstance(config.get("spec"), dict):
        return _with_file("kernels", "spec.toml", config["spec"], more=", and its inputs")
    if command == "watch":
        every = config.get("every", 50)
        return f'orderone.watch(model, optimizer, to="runs/again", every={every!r})'
    if command == "reproduce":
        words = ["orderone", "reproduce", str(config.get("name", ""))]
        return _line([*words, "--scale", str(config.get("scale", "smoke")), *_seed(run)])
    argument = _ARGUMENTS.get(command)
    if argument not in config:
        return f"{_line(['orderone', command])}  # with the settings under Configuration"
    rest = {key: value for key, value in config.items() if key != argument}
    return _line(["orderone", command, str(config[argument]), *_options(rest)])


def _with_file(command: str, name: str, table: Mapping[str, Any], *, more: str = "") -> str:
    return f"orderone {command} {name}\n\n# {name}{more}:\n{toml(table)}"


def toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """The settings as TOML, without those that are not set."""
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    inner: list[str] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner.append(toml(cast(Mapping[str, Any], value), (*path, key)))
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    return "\n".join([*lines, *inner])


def _seed(run: Told) -> list[str]:
    seed = run.folder.seed
    return [] if seed is None else ["--seed", str(seed)]


def _options(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in settings.items():
        name = f"--{key.replace('_', '-')}"
        if value is None or value is False:
            continue
        if isinstance(value, list):
            value = ",".join(str(each) for each in cast("list[Any]", value))
        words += [name] if value is True else [name, str(value)]
    return words


def _line(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "a").replace("-", "a").isalnum()
    return key if bare else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return (
            f"[{', '.join(_value(each) for each in cast('list[Any]', value) if each is not None)}]"
        )
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in pairs) + " }"
    return json.dumps(value) if isinstance(value, str | int | float) else json.dumps(str(value))
