"""What several commands take: numbers with commas between them, and bars of progress."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from orderone.core.errors import ConfigError, OrderoneError

Number = TypeVar("Number", int, float)


def numbers(text: str, kind: Callable[[str], Number], *, option: str) -> list[Number]:
    """``64,128,256`` as numbers."""
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError as error:
        example = "64,128,256" if kind is int else "0.25,0.5,1,2"
        raise ConfigError(
            f"{option} {text}",
            expected="numbers with commas between them",
            do=f"for example {option} {example}",
        ) from error


@contextmanager
def counted(what: str, *, quiet: bool) -> Generator[Callable[[int, int], None]]:
    """A bar that is told (done, total); it leaves nothing above the line of an error."""
    # On stderr: standard output holds the result alone.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task(what, total=None)
        try:
            yield lambda done, total: progress.update(bar, completed=done, total=total)
        except OrderoneError:
            progress.update(bar, visible=False)
            raise
