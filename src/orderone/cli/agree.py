"""``orderone agree``: kernels predicted at infinite width beside those of real networks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.arguments import counted, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from orderone.core.run import RunFolder
    from orderone.experiments.agreement import Agreement, Comparison
    from orderone.report.page import Section

SHOWN = 8
"""Disagreements that the terminal and the top of the page name."""


def agree(
    spec: Annotated[Path, typer.Argument(help="TOML file: network, constants, inputs.")],
    widths: Annotated[str, typer.Option(help="Widths, with commas between.")] = "64,128,256",
    networks: Annotated[int, typer.Option(help="Networks of each width.")] = 16,
    heads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Heads at every width, and C → ∞ in the prediction; without, the spec's head_dim "
            "or up to 16 channels a head, in both.",
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Draws, in place of the spec's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, in place of the spec's.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Networks measured side by side.")] = 1,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Measure G, F and Θ of real networks beside the prediction; exit code 1 if they disagree."""
    from orderone.core.run import RunFolder, new_run_path, refuse_taken
    from orderone.experiments.agreement import agreement
    from orderone.theory.spec import read_spec

    if to is not None:
        refuse_taken(to)
    chosen = numbers(widths, int, option="--widths")
    given = {"samples": samples, "seed": seed}
    changes = {name: value for name, value in given.items() if value is not None}
    read = read_spec(spec)
    # Where no one watches there is no bar, so that an error is one line.
    quiet = as_json or not sys.stderr.isatty()
    with counted("networks", quiet=quiet) as progress:
        result = agreement(
            read.replace(**changes) if changes else read,
            chosen,
            networks=networks,
            heads=heads,
            processes=processes,
            progress=progress,
        )
    ours = result.predicted.spec
    settings = ours.model_dump(mode="python", exclude={"inputs", "targets"})
    config = {"spec": settings, "widths": chosen, "networks": networks, "heads": heads}
    path = to or new_run_path(name="agree")
    run = RunFolder.create(path, command="agree", config=config, seed=ours.seed)
    _keep(run, result, heads)
    if as_json:
        typer.echo(json.dumps(to_json(result), allow_nan=False))
    else:
        _print(run, result, heads)
    return 1 if result.disagreeing else 0


def to_json(result: Agreement) -> dict[str, Any]:
    """``{"verdict", "widths", "networks", "head_dim", "lines": [...], "blocks": [...]}``.

    A line is a kernel of a block at a width; blocks have predicted and measured matrices, the
    measured ones of the largest width.
    """
    return {
        "verdict": result.verdict,
        "widths": list(result.widths),
        "networks": result.networks,
        "head_dim": result.predicted.spec.head_dim,
        "slopes": [
            {"block": block, "quantity": quantity, **_slope(result, quantity, block)}
            for quantity, block in result.slopes
        ],
        "lines": [_line(each) for each in result.comparisons],
        "blocks": _blocks(result),
    }


def _slope(result: Agreement, quantity: str, block: str) -> dict[str, float | None]:
    found = result.slopes[quantity, block]
    names = ("value", "low", "high")
    return {("slope" if n == "value" else n): _finite(getattr(found, n)) for n in names}


def _line(each: Comparison) -> dict[str, Any]:
    return {
        "block": each.block,
        "quantity": each.quantity,
        "width": each.width,
        "overlap": _finite(each.overlap),
        "overlap_se": _finite(each.overlap_se),
        "allowance": each.allowance,
        "excess": _finite(each.excess),
        "agrees": each.agrees,
    }


def _blocks(result: Agreement) -> list[dict[str, Any]]:
    blocks: dict[str, dict[str, Any]] = {}
    for each in result.widest:
        block = blocks.setdefault(each.block, {"name": each.block})
        block[each.quantity] = {
            "predicted": each.predicted.value.tolist(),
            "predicted_se": each.predicted.se.tolist(),
            "measured": _matrix(each.measured.value.tolist()),
            "measured_se": _matrix(each.measured.se.tolist()),
        }
    return list(blocks.values())


def _matrix(rows: list[list[float]]) -> list[list[float | None]]:
    return [[_finite(x) for x in row] for row in rows]


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    import math

    return value if math.isfinite(value) else None


def _keep(run: RunFolder, result: Agreement, heads: int | None) -> None:
    """Every number, the records that are drawn, and the page."""
    from orderone.core.files import write_atomically
    from orderone.experiments.agreement_charts import records
    from orderone.report.page import Found, page

    full = json.dumps(to_json(result), allow_nan=False) + "\n"
    write_atomically(run.path / "agree.json", full.encode())
    with run.writer() as writer:
        writer.write_all(records(result))
    sections = [*_pictures(run, result), _table(result)]
    verdict, *rest = _found(result, heads)
    found = [Found(text=verdict, held=not result.disagreeing), *rest]
    text = page(title="orderone agree", found=found, sections=sections)
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", {"verdict": result.verdict, "disagreeing": len(result.disagreeing)})


def _pictures(run: RunFolder, result: Agreement) -> list[Section]:
    from orderone.experiments.agreement_charts import (
        TITLES,
        errors_by_width,
        matrices,
        side_by_side,
    )
    from orderone.report.charts import save_chart
    from orderone.report.page import Section

    charts = {
        f"{name}-entries": (
            f"{title}, entry by entry",
            side_by_side(result, name, title=f"{title}: measured over predicted"),
            f"Measured entries of {title} over predicted ones, with a line where they are equal",
        )
        for name, title in TITLES.items()
    }
    charts["errors"] = (
        "Distance to the prediction by width",
        errors_by_width(result),
        "Relative distance of measured kernels to the prediction against width, on log-log axes",
    )
    charts |= {
        name: (
            f"{title} by block",
            matrices(result, name),
            f"{title} of every block, predicted and measured, as matrices",
        )
        for name, title in TITLES.items()
    }
    sections: list[Section] = []
    for name, (heading, chart, words) in charts.items():
        save_chart(chart, run.path / f"{name}.svg")
        sections.append(Section(heading=heading, chart=chart, alternative=words))
    return sections


COLUMNS = (
    "kernel", "block", "predicted", "± se", "measured", "± se", "overlap", "± se", "slope",
    "verdict",
)  # fmt: skip


def _table(result: Agreement) -> Section:
    from orderone.report.page import Section

    return Section(
        heading=f"At width {max(result.widths)}",
        text=LEGEND,
        columns=COLUMNS,
        rows=[_cells(result, each) for each in result.widest],
    )


LEGEND = (
    "Means over the diagonal, of F over all other entries, of values and of standard errors; "
    "overlap is ⟨measured, predicted⟩ / ‖predicted‖², 1 where the two agree; slope is "
    "the exponent of n of one network's error, −½ where nothing but chance separates it from the "
    "prediction."
)


def _cells(result: Agreement, each: Comparison) -> list[str]:
    from orderone.experiments.agreement_charts import symbol

    slope = result.slopes.get((each.quantity, each.block))
    sides = [
        f"{_mean(K, off=each.quantity == 'F'):.4f}"
        for bars in (each.predicted, each.measured)
        for K in (bars.value, bars.se)
    ]
    if slope is not None:
        power = f"{signed(slope.value)} [{signed(slope.low)}, {signed(slope.high)}]"
    else:
        power = "exact" if each.exact else "one width"
    verdict = "agrees" if each.agrees else "disagrees"
    overlap = [f"{each.overlap:.3f}", f"{each.overlap_se:.3f}"]
    return [symbol(each.quantity), each.block, *sides, *overlap, power, verdict]


def _mean(K: Tensor, *, off: bool) -> float:
    """Over the diagonal, or ``off`` it: F's diagonal is 1 whatever the network."""
    a = len(K)
    if not off or a == 1:
        return float(K.diagonal().mean())
    return float(K.sum() - K.trace()) / (a * (a - 1))


def signed(value: float) -> str:
    """With a minus sign as in the text around it."""
    return f"{value:+.2f}".replace("-", "−")


def _found(result: Agreement, heads: int | None) -> list[str]:
    count, widths = len(result.comparisons), ", ".join(map(str, result.widths))
    wrong = result.disagreeing
    most = max(each.excess for each in result.comparisons)
    verdict = (
        f"Prediction and measurement agree in all {count} kernels at widths {widths}: the largest "
        f"gap is {most:.2f} of what 4 joint standard errors and the allowance grant."
        if not wrong
        else f"Prediction and measurement disagree in {len(wrong)} of {count} kernels at widths "
        f"{widths}."
    )
    found = [verdict]
    for each in wrong[:SHOWN]:
        found.append(
            f"{each.quantity} of {each.block} at n = {each.width}: overlap {each.overlap:.3f} ± "
            f"{each.overlap_se:.3f}, {each.excess:.1f} times what is granted."
        )
    found.append(f"{result.networks} networks of each width; {_heads(result, heads)}.")
    slopes = sorted(slope.value for slope in result.slopes.values())
    if slopes:
        found.append(
            f"One network's distance to the prediction goes as a power of n, over kernels from "
            f"{signed(slopes[0])} to {signed(slopes[-1])} with median "
            f"{signed(slopes[len(slopes) // 2])}; "
            "expected −0.50."
        )
    return found


def _heads(result: Agreement, heads: int | None) -> str:
    if heads is None:
        C = result.predicted.spec.head_dim
        return (
            f"heads of {C} channels in networks and prediction; the allowance for a bias is "
            "(number of blocks)/n"
        )
    return (
        f"{heads} heads, whose scores the prediction takes as Gaussian; the allowance for a bias "
        "is (number of blocks)/n + 1/C, and over a fixed number of heads one network's error "
        "falls slower than 1/√n"
    )


def _print(run: RunFolder, result: Agreement, heads: int | None) -> None:
    from orderone.cli.kernels import aligned

    for sentence in _found(result, heads):
        typer.echo(sentence)
    for line in aligned([COLUMNS, *(_cells(result, each) for each in result.widest)]):
        typer.echo(line)
    typer.echo(f"Page: {run.path / 'report.html'}")
