"""What a parameter is: its group, its fans, lookup or not, part of the head or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orderone.scaling.rule import Fans

Start = Literal["draw", "zero", "one", "keep"]
"""How a parameter starts: drawn at its variance, all zeros, all ones, or as its model made it."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """What the rule needs to know of a parameter; also how a user says it, in ``overrides``.

    ``fan_in`` and ``fan_out`` that are None are read off the tensor: (out, in, ...) of a map,
    the last axis of a lookup.
    """

    group: str
    """The paper's letter or word: patch, word, position, Q, K, V, U, W, X, head; or one of what it
    leaves out: qkv, gate, dense, gain, bias, relative-bias, class-token, convolution."""
    fan_in: int | None = None
    fan_out: int | None = None
    lookup: bool = False
    head: bool = False
    start: Start = "draw"
    scale: float = 1.0
    """What the model itself multiplies the tensor by before use, as Gemma does words by √n."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A parameter of a model with its role resolved, and why that role was chosen."""

    name: str
    shape: tuple[int, ...]
    role: Role
    reason: str
    also: tuple[str, ...] = ()
    """Other names of the same tensor, as of a head that is tied to the word embedding."""
    zero_row: int | None = None
    """Row of an embedding that stays zero: the [pad] word."""

    def fans(self) -> Fans[float]:
        """The numbers that the rule works on."""
        role = self.role
        assert role.fan_in is not None
        assert role.fan_out is not None
        return Fans(
            fan_in=float(role.fan_in),
            fan_out=float(role.fan_out),
            lookup=role.lookup,
            head=role.head,
        )


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Every parameter of a model, placed."""

    rows: tuple[Placement, ...]
    n: int
    """Width that the meta-exponent s acts on: the head's fan-in, or the residual stream's."""
    tied_head: str | None = None
    """Module whose output takes the multiplier, when its matrix is the word embedding's."""
