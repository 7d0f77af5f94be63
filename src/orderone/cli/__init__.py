"""The command line: one file a command, one line an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from orderone import __version__
from orderone.cli.demo import demo
from orderone.core.errors import OrderoneError, one_line

DONE, DOES_NOT_HOLD, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    help="Keep transformers of order one: before, during and after training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orderone {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  # typer calls it
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    del version


app.command()(demo)


def run(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command line: 0 done, 1 a check did not hold, 2 bad input."""
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="orderone")
    except OrderoneError as error:
        return _refuse(str(error), BAD_INPUT)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "orderone"
        return _refuse(f"{error.format_message()} See: {where} --help", BAD_INPUT)
    except click.ClickException as error:
        return _refuse(error.format_message(), BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        return _refuse("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`orderone ... | head`): that is no error of ours.
        sys.stderr.close()
        return DONE
    return code if isinstance(code, int) else DONE


def _refuse(message: str, code: int) -> int:
    typer.echo(f"orderone: {one_line(message)}", err=True)
    return code


def main() -> None:
    """Entry point of the ``orderone`` script."""
    sys.exit(run())
