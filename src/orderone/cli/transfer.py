"""``orderone transfer``: does the best learning rate stay where it is as the model widens?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderone.cli.arguments import counted, numbers
from orderone.cli.plan import MODEL_HELP
from orderone.core.errors import ConfigError

if TYPE_CHECKING:
    from orderone.core.run import RunFolder
    from orderone.experiments.transfer import Optimum, Transfer

ENGINES = ("local", "ray")


def transfer(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    widths: Annotated[str, typer.Option(help="Widths, with commas between.")] = "64,128,256",
    lrs: Annotated[
        str, typer.Option(help="Learning rates, in units of the plan's factors.")
    ] = "1,2,4,8,16,32,64",
    strategy: Annotated[
        str | None,
        typer.Option(help="neural-tangent (default), hybrid, maximal-update or standard."),
    ] = None,
    s: Annotated[float | None, typer.Option(help="Meta-exponent in [0, 1], for strategy.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 200,
    seeds: Annotated[int, typer.Option(help="Seeds at each width and rate.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Samples a step.")] = 16,
    weight_decay: Annotated[float, typer.Option(help="In units of the plan's factors.")] = 0.0,
    text: Annotated[
        str | None, typer.Option(help="Corpus: a name or a file; the standard library's sources.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: spread over a cluster.")] = "local",
    processes: Annotated[int, typer.Option(min=1, help="Processes of the local engine.")] = 1,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Sweep learning rates at each width; exit code 1 if the best one moves with the width."""
    from orderone.core.run import RunFolder, new_run_path, refuse_taken
    from orderone.experiments.sources import source
    from orderone.experiments.transfer import transfer as sweep

    if to is not None:
        refuse_taken(to)
    if engine not in ENGINES:
        raise ConfigError(
            f"--engine {engine}", expected=f"one of {', '.join(ENGINES)}", do="choose one"
        )
    chosen = numbers(widths, int, option="--widths")
    rates = numbers(lrs, float, option="--lrs")
    with counted("runs", quiet=as_json) as progress:
        result = sweep(
            source(model).build,
            chosen,
            rates,
            strategy,
            s=s,
            seeds=seeds,
            steps=steps,
            batch=batch,
            weight_decay=weight_decay,
            text=text,
            engine="ray" if engine == "ray" else "local",
            processes=processes,
            progress=progress,
        )
    settings = {"model": model, "widths": chosen, "lrs": rates, "strategy": strategy, "s": s}
    settings |= {"steps": steps, "seeds": seeds, "batch": batch, "weight_decay": weight_decay}
    settings |= {"text": text}
    path = to or new_run_path(name="transfer")
    run = RunFolder.create(path, command="transfer", config=settings, seed=0)
    sentences = _sentences(result)
    _keep(run, result, sentences, title=f"orderone transfer {model}")
    if as_json:
        typer.echo(json.dumps(run.result["summary"] if run.result else None))
    else:
        for sentence in [*sentences, f"Page: {run.path / 'report.html'}"]:
            typer.echo(sentence)
    return 1 if result.verdict == "does not hold" else 0


def _keep(run: RunFolder, result: Transfer, sentences: list[str], *, title: str) -> None:
    """Records, picture and page."""
    from orderone.core.record import Record
    from orderone.experiments.transfer import as_json
    from orderone.report.charts import save_chart
    from orderone.report.page import Section, page

    with run.writer() as records:
        for row in result.frame.to_dicts():
            labels = {name: str(row[name]) for name in ("width", "lr", "seed")}
            records.write(Record(0, "loss", row["loss"], labels))
    chart = result.chart()
    save_chart(chart, run.path / "transfer.svg")
    picture = Section(
        heading="Loss by learning rate",
        chart=chart,
        alternative="Validation loss against learning rate, a line each width",
    )
    table = Section(
        heading="Best learning rate",
        columns=("width", "best", "interval over seeds", "at the edge"),
        rows=[_cells(each) for each in result.optima if each.width not in result.diverged],
    )
    text = page(title=title, found=sentences, sections=[picture, table])
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", as_json(result))


def _sentences(result: Transfer) -> list[str]:
    lost = result.diverged
    best = ", ".join(
        f"{each.lr:.3g} at {each.width}" for each in result.optima if each.width not in lost
    )
    sentences = [f"Best learning rate under {result.strategy}: {best or 'none'}."]
    if lost:
        where = ", ".join(map(str, lost))
        sentences.append(f"At width {where} every run diverged: lower --lrs.")
    if result.shift is not None:
        shift = result.shift
        sentences.append(
            f"It moves by {shift.value:+.2f} doublings per doubling of the width "
            f"({shift.low:+.2f} to {shift.high:+.2f})."
        )
    if any(each.at_edge for each in result.optima if each.width not in lost):
        sentences.append("Some optimum lies at the edge of the rates tried: widen --lrs.")
    return sentences


def _cells(optimum: Optimum) -> list[str]:
    one_seed = not math.isfinite(math.log(optimum.low)) if optimum.low > 0 else True
    interval = "one seed" if one_seed else f"{optimum.low:.3g} to {optimum.high:.3g}"
    edge = "yes" if optimum.at_edge else ""
    return [str(optimum.width), f"{optimum.lr:.3g}", interval, edge]
