"""A plan as JSON: what the command prints, and what else it takes to make the plan again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from orderone.core.errors import ConfigError
from orderone.scaling.row import Row

if TYPE_CHECKING:
    from orderone.scaling.plan import Plan

FORMAT = 1


def written_plan(plan: Plan) -> dict[str, Any]:
    """Superset of ``Plan.summary``."""
    rows = [
        {**record, **asdict(row)}
        for record, row in zip(plan.summary()["rows"], plan.rows, strict=True)
    ]
    return {
        **plan.summary(),
        "rows": rows,
        "constants": plan.constants,
        "tied_head": plan.tied_head,
        "base_width": plan.base_width,
        "format": FORMAT,
    }


def read_plan(text: str) -> dict[str, Any]:
    """The fields of the plan that ``written_plan`` described."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _refusal(str(error)) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refusal(f"no 'format': {FORMAT}")
    try:
        read = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _refusal(f"{place}: {first['msg']}") from None
    return {name: getattr(read, name) for name in _Document.model_fields}


class _Document(BaseModel):
    """The fields of a plan; what only ``Plan.summary`` needs is made again."""

    strategy: str
    s: float
    width: int
    constants: str
    rows: tuple[Row, ...]
    output_multiplier: float
    tied_head: str | None
    base_width: int | None


def _refusal(what: str) -> ConfigError:
    return ConfigError(
        f"not a plan's JSON ({what})",
        expected="what Plan.to_json wrote",
        do="write it again with plan.to_json()",
    )
