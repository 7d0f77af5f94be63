"""``orderone saturation``: how close is a model to what is left of it at infinite norm?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.plan import MODEL_HELP

if TYPE_CHECKING:
    from orderone.core.run import RunFolder
    from orderone.experiments.saturation import Measured
    from orderone.probes.saturation import Level

COMMONEST = 20
"""Tokens that the breakdown shows."""
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
    tokens: Annotated[bool, typer.Option("--tokens", help="Break down by token.")] = False,
    longest: Annotated[int, typer.Option(min=1, help="Cut sentences at so many tokens.")] = 512,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of another tokenizer.")] = None,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Cosine of hidden states with those of the saturated network, with controls."""
    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.saturation import measured_saturation

    result = measured_saturation(
        model,
        text,
        c=c,
        count=sentences,
        seeds=range(seeds),
        stack_only=stack_only,
        exact=exact,
        by_token=tokens,
        longest=longest,
        tokenizer=tokenizer,
    )
    settings = {"model": model, "text": text, "c": c, "sentences": sentences, "seeds": seeds}
    settings |= {"stack_only": stack_only, "exact": exact, "longest": longest}
    path = to or new_run_path(name="saturation")
    run = RunFolder.create(path, command="saturation", config=settings, seed=0)
    _keep(run, result, title=f"orderone saturation {model}")
    if as_json:
        typer.echo(json.dumps(_json(result)))
        return
    for line in _table(result):
        typer.echo(line)
    for line in [*result.found.said, *(_by_token(result) if tokens else [])]:
        typer.echo(line)
    typer.echo(f"Page: {run.path / 'report.html'}")


def _json(result: Measured) -> dict[str, Any]:
    found = result.found
    rows: list[dict[str, Any]] = []
    for index, level in enumerate(found.layers):
        row: dict[str, Any] = {"layer": level.layer, **_level(level)}
        row["random"] = None if found.random is None else _level(found.random[index])
        if result.exact is not None:
            row["exact"] = result.exact.layers[index].cosine
        rows.append(row)
    return {
        "layers": rows,
        "agreement": found.agreement,
        "collapsed": found.collapsed,
        "sentences": found.sentences,
    }


def _level(level: Level) -> dict[str, float | None]:
    names = ("cosine", "se", "other", "cross", "centred")
    return {name: getattr(level, name) for name in names}


def _rows(result: Measured) -> tuple[list[str], list[list[str]]]:
    found = result.found
    columns = ["layer", "cosine", "se", "other", "cross", "centred"]
    columns += [] if found.random is None else ["random", "random se"]
    columns += [] if result.exact is None else ["exact"]
    rows: list[list[str]] = []
    for index, level in enumerate(found.layers):
        row: list[float | None] = list(_level(level).values())
        if found.random is not None:
            row += [found.random[index].cosine, found.random[index].se]
        if result.exact is not None:
            row.append(result.exact.layers[index].cosine)
        rows.append([level.layer, *("" if x is None else f"{x:.3f}" for x in row)])
    return columns, rows


def _table(result: Measured) -> list[str]:
    columns, rows = _rows(result)
    width = max(len(row[0]) for row in [columns, *rows])
    return [
        "  ".join([f"{row[0]:<{width}}", *(f"{each:>9}" for each in row[1:])])
        for row in [columns, *rows]
    ]


def _by_token(result: Measured) -> list[str]:
    """The commonest tokens with their mean cosine at the last layer."""
    found = result.found.layers[-1].by_token
    ranked = sorted(found, key=lambda token: (-found[token][0], token))[:COMMONEST]
    word = result.sentences.encoder.word
    return [f"  {word(t)!r}: {found[t][1]:.3f} over {found[t][0]}" for t in ranked]


def _keep(run: RunFolder, result: Measured, *, title: str) -> None:
    """Records, picture and page."""
    import polars as pl

    from orderone.core.record import Record
    from orderone.report.charts import lines, save_chart, svg
    from orderone.report.page import Section, page

    points: list[dict[str, Any]] = []
    sides = {"": result.found.layers, "random ": result.found.random or ()}
    if result.exact is not None:
        sides["exact "] = result.exact.layers
    with run.writer() as records:
        for side, levels in sides.items():
            for index, level in enumerate(levels):
                for name, value in _level(level).items():
                    if value is None:
                        continue
                    labels = {"layer": level.layer, "network": side.strip() or "model"}
                    records.write(Record(0, f"saturation.{name}", value, labels))
                    if name != "se":
                        points.append({"layer": index, "what": side + name, "value": value})
    chart = lines(
        pl.DataFrame(points),
        x=("layer", "layer, in the order computed"),
        y=("value", "cosine"),
        colour=("what", "between"),
        title="Saturation by layer",
        points=True,
    )
    save_chart(chart, run.path / "saturation.svg")
    columns, rows = _rows(result)
    picture = Section(
        heading="Saturation by layer",
        picture=svg(chart),
        alternative="Cosines of hidden states with the saturated network and controls, by layer",
    )
    table = Section(heading="Every layer", columns=columns, rows=rows)
    text = page(title=title, found=result.found.said, sections=[picture, table])
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", _json(result))
