"""One stop of the tour: what was found in a sentence, and what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orderone.report.page import Section


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What one tool found."""

    found: str
    sections: Sequence[Section]
