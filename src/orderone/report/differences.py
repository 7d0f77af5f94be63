"""Configurations of runs beside one another: what differs, and what is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from orderone.report.told import Told


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """``{"model": {"n": 64}}`` as ``{"model.n": "64"}``; lists as they stand in JSON."""
    if isinstance(value, Mapping) and value:
        found: dict[str, str] = {}
        for key, each in cast("Mapping[str, Any]", value).items():
            found |= flattened(each, f"{path}.{key}" if path else str(key))
        return found
    return {path: value if isinstance(value, str) else json.dumps(value)}


def settings(run: Told) -> dict[str, str]:
    """Command, seed, versions, commit and every setting of the configuration."""
    described = run.folder.description
    code = described.get("code")
    told: dict[str, Any] = {"command": run.command, "seed": run.folder.seed}
    told["configuration"] = run.folder.config
    told["versions"] = described.get("versions")
    told["commit"] = code.get("commit") if isinstance(code, dict) else None
    told["machine"] = described.get("machine")
    return {key: text for key, text in flattened(told).items() if text not in ("null", "{}")}


def table(runs: Sequence[Told]) -> tuple[list[list[str]], int]:
    """A row each setting that is not the same in all runs, and how many are."""
    found = [settings(run) for run in runs]
    keys = list(dict.fromkeys(key for each in found for key in each))
    rows = [[key, *(each.get(key, "") for each in found)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return differing, len(rows) - len(differing)
