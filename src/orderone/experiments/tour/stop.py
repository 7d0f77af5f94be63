"""One stop of the tour: what was found in a sentence, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from orderone.report.page import Section

Progress = Callable[[int, int], None]
"""Told (done, total)."""
Bars = Callable[[str], AbstractContextManager[Progress]]
"""A bar of progress under a name."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What one tool found."""

    name: str
    found: str
    numbers: Mapping[str, Any]
    """What the sentence says, for a program."""
    sections: Sequence[Section]
