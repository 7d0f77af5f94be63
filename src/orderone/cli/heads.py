"""``orderone heads``: what does each attention head look at, saturated and as it is?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.plan import MODEL_HELP
from orderone.cli.saturation import TEXT_HELP

if TYPE_CHECKING:
    from orderone.core.run import RunFolder
    from orderone.probes.heads import HeadLook, Heads


def heads(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    text: Annotated[str, typer.Option(help=TEXT_HELP)],
    c: Annotated[float, typer.Option(help="What parameters are multiplied by.")] = 1024.0,
    sentences: Annotated[int, typer.Option(help="How many, evenly spaced.")] = 200,
    stack_only: Annotated[
        bool, typer.Option("--stack-only", help="Leave embeddings and head unscaled.")
    ] = False,
    as_coded: Annotated[
        bool, typer.Option("--as-coded", help='With mask="zero": padding unmasked too.')
    ] = False,
    longest: Annotated[int, typer.Option(min=1, help="Cut sentences at so many tokens.")] = 512,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of another tokenizer.")] = None,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the positions that each head attends to."""
    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.saturation import measured_heads

    result = measured_heads(
        model,
        text,
        c=c,
        count=sentences,
        stack_only=stack_only,
        as_coded=as_coded,
        longest=longest,
        tokenizer=tokenizer,
    )
    settings = {"model": model, "text": text, "c": c, "sentences": sentences}
    settings |= {"stack_only": stack_only, "as_coded": as_coded, "longest": longest}
    path = to or new_run_path(name="heads")
    run = RunFolder.create(path, command="heads", config=settings, seed=0)
    _keep(run, result, title=f"orderone heads {model}")
    if as_json:
        typer.echo(json.dumps(_json(result)))
        return
    for line in [*_map(result), *result.said]:
        typer.echo(line)
    typer.echo(f"Page: {run.path / 'report.html'}")


def _json(result: Heads) -> dict[str, Any]:
    return {"heads": [_head(each) for each in result.heads]}


def _head(each: HeadLook) -> dict[str, Any]:
    names = ("layer", "head", "saturated_positions", "single", "whole_prefix", "entropy")
    found = {name: getattr(each, name) for name in (*names, "effective_positions")}
    return {**found, "kind": each.kind}


def _map(result: Heads) -> list[str]:
    """A line a layer: positions of each head, saturated; then effective ones at c = 1."""
    layers: dict[str, list[HeadLook]] = {}
    for each in result.heads:
        layers.setdefault(each.layer, []).append(each)
    width = max(map(len, layers))
    said: list[str] = []
    for what in ("saturated_positions", "effective_positions"):
        said.append(f"{what.replace('_', ' ')}, a line each layer, a column each head:")
        for layer, row in layers.items():
            numbers = " ".join(f"{getattr(each, what):6.2f}" for each in row)
            said.append(f"  {layer:<{width}} {numbers}")
    return said


def _keep(run: RunFolder, result: Heads, *, title: str) -> None:
    """Records, histogram, layer × head maps and page."""
    import polars as pl

    from orderone.core.record import Record
    from orderone.report.charts import save_chart
    from orderone.report.maps import grid, histogram
    from orderone.report.page import Section, page

    numbers = [
        name for name in vars(result.heads[0]) if isinstance(getattr(result.heads[0], name), float)
    ]
    with run.writer() as records:
        for each in result.heads:
            labels = {"layer": each.layer, "head": str(each.head), "kind": each.kind}
            for name in numbers:
                value = getattr(each, name)
                if value is not None:
                    records.write(Record(0, f"heads.{name}", value, labels))
    # Of sentences of one token these have no numbers, but must be columns of numbers all the same.
    shares = {"single": pl.Float64, "whole_prefix": pl.Float64, "spread": pl.Float64}
    rows = [{**_head(each), "spread": each.spread} for each in result.heads]
    frame = pl.DataFrame(rows, schema_overrides=shares)
    x, y = ("head", "head"), ("layer", "layer")
    charts = {
        "Positions attended, saturated": histogram(
            frame,
            value=("saturated_positions", "positions"),
            count="heads",
            title=f"Positions attended at c = {result.c:g}",
        ),
        "Saturated, by layer and head": grid(
            frame, x=x, y=y, value=("saturated_positions", "positions"), title="At large c"
        ),
        "At c = 1, by layer and head": grid(
            frame, x=x, y=y, value=("spread", "effective / legal"), title="At c = 1"
        ),
    }
    sections = [
        Section(heading=name, chart=chart, alternative=f"{name}: one value a head")
        for name, chart in charts.items()
    ]
    save_chart(charts["Positions attended, saturated"], run.path / "heads.svg")
    columns = ["layer", "head", "kind", *numbers]
    cells = [[_cell(getattr(each, name)) for name in columns] for each in result.heads]
    sections.append(Section(heading="Every head", columns=columns, rows=cells))
    text = page(title=title, found=result.said, sections=sections)
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", _json(result))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
