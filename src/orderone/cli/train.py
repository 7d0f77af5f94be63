"""``orderone train``: a model learns a corpus as a file says, on one process or many."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file: model, plan, data, training.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest whole checkpoint, if any.")
    ] = False,
    to: Annotated[Path | None, typer.Option(help="Run folder to make, or to resume.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a model; on many processes: torchrun -m orderone train CONFIG.toml."""
    # Here and not above: `orderone --help` need not wait for torch.
    from orderone.experiments.run_config import read_run_config
    from orderone.experiments.training_run import train_run
    from orderone.report.runs import write_page

    settings = read_run_config(config)
    done = train_run(settings, to=to, resumes=resume, quiet=as_json)
    if not done.leads:
        return
    page = write_page(done.run.path)
    outcome = done.outcome
    for sentence in outcome.damaged:
        typer.echo(f"orderone: passed over a checkpoint: {sentence}", err=True)
    if as_json:
        typer.echo(json.dumps({"run": str(done.run.path), **asdict(outcome)}))
        return
    rate = f", {outcome.tokens_per_second:,.0f} tokens/s" if outcome.tokens else ""
    typer.echo(f"{outcome.steps:,} steps{rate}.")
    if outcome.validation is not None and outcome.best_validation is not None:
        unit = "a token" if settings.images is None else "an image"
        typer.echo(
            f"Validation loss {outcome.validation:.4f} nats {unit}; the best, "
            f"{outcome.best_validation:.4f}, at step {outcome.best_step:,}."
        )
    typer.echo(f"Run folder: {done.run.path}")
    typer.echo(f"Page: {page}")
