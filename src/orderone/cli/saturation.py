"""``orderone saturation``: how close is a model to what is left of it at infinite norm?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orderone.cli.arguments import numbers
from orderone.cli.plan import MODEL_HELP

TEXT_HELP = "Text file, folder or zip; brown.zip of NLTK; or brown, penn, stdlib."


def saturation(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    text: Annotated[str, typer.Option(help=TEXT_HELP)],
    c: Annotated[float, typer.Option(help="What parameters are multiplied by.")] = 1024.0,
    sentences: Annotated[int, typer.Option(help="How many, evenly spaced.")] = 100,
    seeds: Annotated[int, typer.Option(min=0, help="Random initialisations beside it.")] = 3,
    stack_only: Annotated[
        bool, typer.Option("--stack-only", help="Leave embeddings and head unscaled.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also the exact limit, by graded values.")
    ] = False,
    curve: Annotated[
        str | None,
        typer.Option(help="Also the last layer over these c, with and without biases: 1,2,5,10."),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Break down by token.")] = False,
    longest: Annotated[int, typer.Option(min=1, help="Cut sentences at so many tokens.")] = 512,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of another tokenizer.")] = None,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Cosine of hidden states with those of the saturated network, with controls."""
    from orderone.cli.saturation_page import as_json as told
    from orderone.cli.saturation_page import by_token, curve_lines, keep, table
    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.saturation import measured_saturation

    cs = None if curve is None else numbers(curve, float, option="--curve")
    result = measured_saturation(
        model,
        text,
        c=c,
        count=sentences,
        seeds=range(seeds),
        stack_only=stack_only,
        exact=exact,
        by_token=tokens,
        cs=cs,
        longest=longest,
        tokenizer=tokenizer,
    )
    settings = {"model": model, "text": text, "c": c, "sentences": sentences, "seeds": seeds}
    settings |= {"stack_only": stack_only, "exact": exact, "curve": cs, "longest": longest}
    path = to or new_run_path(name="saturation")
    run = RunFolder.create(path, command="saturation", config=settings, seed=0)
    keep(run, result, title=f"orderone saturation {model}")
    if as_json:
        typer.echo(json.dumps(told(result)))
        return
    for line in table(result):
        typer.echo(line)
    more = by_token(result) if tokens else []
    more += [] if result.curves is None else curve_lines(result.curves)
    for line in [*result.found.said, *more]:
        typer.echo(line)
    typer.echo(f"Page: {run.path / 'report.html'}")
