"""A role that a rule gave, and why."""

from __future__ import annotations

from dataclasses import dataclass

from orderone.scaling.roles import Role, Start


@dataclass(frozen=True)
class Found:
    """A role with its fans resolved, and the reason in a few words."""

    role: Role
    reason: str
    zero_row: int | None = None


def lookup(group: str, fan_out: int, *, start: Start = "draw", head: bool = False) -> Role:
    """Applied without a sum over fan-in: its fan-in is 1."""
    return Role(group=group, fan_in=1, fan_out=fan_out, lookup=True, head=head, start=start)


def matrix(group: str, fan_in: int, fan_out: int, *, head: bool = False) -> Role:
    """A sum over fan-in."""
    return Role(group=group, fan_in=fan_in, fan_out=fan_out, head=head)
