"""The command line: one file a command, one line an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import typer

from orderone import __version__
from orderone.cli.agree import agree
from orderone.cli.check import check
from orderone.cli.demo import demo
from orderone.cli.heads import heads
from orderone.cli.homogeneity import homogeneity
from orderone.cli.kernels import kernels
from orderone.cli.plan import plan
from orderone.cli.report import report
from orderone.cli.reproduce import reproduce
from orderone.cli.saturation import saturation
from orderone.cli.search import search
from orderone.cli.sweep import sweep
from orderone.cli.tail import tail
from orderone.cli.train import train
from orderone.cli.trajectory import trajectory
from orderone.cli.transfer import transfer
from orderone.core.errors import OrderoneError, one_line

DONE, DOES_NOT_HOLD, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# Typer carries its own copy of click, under a private name that differs between versions; the
# public BadParameter leads to the class that all of its complaints derive from.
_CommandLineError = cast("type[Exception]", typer.BadParameter.__mro__[2])

app = typer.Typer(
    help="Keep transformers of order one: before, during and after training.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        typer.echo(f"orderone {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  # typer calls it
    version: bool | None = typer.Option(
        None, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    del version


app.command()(demo)
app.command()(plan)
app.command()(check)
app.command()(transfer)
app.command()(train)
app.command()(search)
app.command()(sweep)
app.command()(tail)
app.command()(homogeneity)
app.command()(saturation)
app.command()(heads)
app.command()(reproduce)
app.command()(report)
app.command()(kernels)
app.command()(agree)
app.command()(trajectory)


def run(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command line: 0 done, 1 a check did not hold, 2 bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = app(args=words, standalone_mode=False, prog_name="orderone")
    except OrderoneError as error:
        return _refuse(str(error), BAD_INPUT)
    except _CommandLineError as error:
        return _refuse(_complaint(error), BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        return _refuse("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`orderone ... | head`): that is no error of ours.
        sys.stderr.close()
        return DONE
    except (MemoryError, RuntimeError) as error:
        from orderone.core.memory import out_of_memory  # with torch, which --help need not wait for

        refused = out_of_memory(error)
        if refused is None:
            raise
        return _refuse(str(refused), BAD_INPUT)
    return code if isinstance(code, int) else DONE


def _complaint(error: Any) -> str:
    """What was wrong with the words of a command, and where its options are listed."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "orderone"
    return f"{error.format_message()} See: {command} --help"


def _refuse(message: str, code: int) -> int:
    typer.echo(f"orderone: {one_line(message)}", err=True)
    return code


def main() -> None:
    """Entry point of the ``orderone`` script."""
    sys.exit(run())
