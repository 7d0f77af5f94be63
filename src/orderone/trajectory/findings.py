"""What is wrong with a series: rows of a table, never an abort."""

from dataclasses import dataclass
from typing import Literal

from orderone.core.errors import OrderoneError, one_line

Kind = Literal[
    "unreadable",
    "truncated",
    "missing-shard",
    "shape",
    "non-finite",
    "duplicate",
    "off-path",
    "low-precision",
]

_LONGEST = 400  # names inside a damaged file can be of any length


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: which checkpoint, what kind of wrong, and where."""

    checkpoint: str
    kind: Kind
    detail: str


class UnreadableError(OrderoneError):
    """A checkpoint, or a tensor of it, cannot be read; becomes a ``Finding``.

    ``passing``: the way to it failed, not the file, and may be good again.
    """

    def __init__(self, kind: Kind, detail: str, *, passing: bool = False) -> None:
        self.kind: Kind = kind
        self.passing = passing
        # Damaged names may hold what no terminal or JSON reader takes.
        line = one_line(detail).encode(errors="backslashreplace").decode()
        self.detail = line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
        super().__init__(
            self.detail,
            expected="a readable checkpoint",
            do="write or download it again, or leave it out",
        )

    def finding(self, checkpoint: str) -> Finding:
        return Finding(checkpoint=checkpoint, kind=self.kind, detail=self.detail)
