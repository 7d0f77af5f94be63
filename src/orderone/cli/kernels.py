"""``orderone kernels``: G, F and Θ of every block at infinite width."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderone.cli.arguments import counted

if TYPE_CHECKING:
    from torch import Tensor

    from orderone.core.record import Record
    from orderone.core.run import RunFolder
    from orderone.report.page import Section
    from orderone.theory.kernels import BlockKernels, Kernels

DRAWN = 32
"""(sample, position) pairs that the pictures show; kernels.json has all."""


def kernels(
    spec: Annotated[Path, typer.Argument(help="TOML file: network, constants, inputs.")],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Draws, in place of the spec's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, in place of the spec's.")] = None,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the kernels G, F and Θ of every block at infinite width, with standard errors."""
    from orderone.core.run import RunFolder, new_run_path, refuse_taken
    from orderone.theory.kernels import kernels as predict
    from orderone.theory.spec import read_spec

    if to is not None:
        refuse_taken(to)
    given = {"samples": samples, "seed": seed}
    read = read_spec(spec)
    changes = {name: value for name, value in given.items() if value is not None}
    # Where no one watches there is no bar, so that an error is one line.
    quiet = as_json or not sys.stderr.isatty()
    with counted("recursions", quiet=quiet) as progress:
        result = predict(read, progress=progress, **changes)
    settings = result.spec.model_dump(mode="python", exclude={"inputs", "targets"})
    path = to or new_run_path(name="kernels")
    run = RunFolder.create(
        path, command="kernels", config={"spec": settings}, seed=result.spec.seed
    )
    _keep(run, result)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        _print(result, run)


def _keep(run: RunFolder, result: Kernels) -> None:
    """Every number, the records that are drawn, and the page."""
    from orderone.core.files import write_atomically
    from orderone.report.page import page

    full = json.dumps(result.to_json(), allow_nan=False) + "\n"
    write_atomically(run.path / "kernels.json", full.encode())
    with run.writer() as records:
        records.write_all(_records(result))
    sections = [_table(result), *_pictures(run)]
    text = page(title="orderone kernels", found=_found(result), sections=sections)
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", {"samples": result.samples, "gradient_sizes": dict(result.gradient_sizes)})


def _records(result: Kernels) -> Iterator[Record]:
    """One record an entry: the step is the block's place."""
    from orderone.core.record import Record

    for step, block in enumerate(result.blocks):
        for name, (value, se) in _kernels_of(block).items():
            for i, row in enumerate(value[:DRAWN, :DRAWN].tolist()):
                for j, entry in enumerate(row):
                    labels = {"block": block.name, "row": f"{i:02}", "column": f"{j:02}"}
                    labels["se"] = f"{float(se[i, j]):.3g}"
                    yield Record(step, name, entry, labels)


def _kernels_of(block: BlockKernels) -> dict[str, tuple[Tensor, Tensor]]:
    groups = {f"Theta of {name}": (each.value, each.se) for name, each in block.by_group.items()}
    return {
        "G": (block.G, block.G_se),
        "F": (block.F, block.F_se),
        "Theta": (block.Theta, block.Theta_se),
        **groups,
    }


def _pictures(run: RunFolder) -> list[Section]:
    import polars as pl

    from orderone.report.charts import heatmaps, save_chart
    from orderone.report.page import Section

    frame = run.records()
    titles = {"F": "Layer-normalised kernel F", "G": "Kernel G", "Theta": "Tangent kernel Θ"}
    sections: list[Section] = []
    for name, title in titles.items():
        chart = heatmaps(
            frame.filter(pl.col("name") == name).select("block", "row", "column", "value", "se"),
            row="row",
            column="column",
            value=("value", name.replace("Theta", "Θ")),
            facet="block",
            title=f"{title} by block",
            subtitle=f"(sample, position) pairs, sample after sample; the first {DRAWN} at most",
        )
        save_chart(chart, run.path / f"{name}.svg")
        words = f"{title} of every block, as a matrix over pairs of samples and positions"
        sections.append(Section(heading=title, chart=chart, alternative=words))
    return sections


def _table(result: Kernels) -> Section:
    from orderone.report.page import Section

    return Section(heading="By block", text=LEGEND, columns=COLUMNS, rows=_rows(result))


COLUMNS = ("block", "G", "G off", "F off", "Θ", "Θ off", "error of G", "error of Θ")
LEGEND = (
    "Means over the diagonal, and (off) over all other pairs; errors are the largest standard "
    "errors of an entry."
)


def _rows(result: Kernels) -> list[list[str]]:
    return [
        [
            block.name,
            *(f"{x:.4f}" for x in (*_means(block.G), _means(block.F)[1], *_means(block.Theta))),
            f"{float(block.G_se.max()):.1e}",
            f"{float(block.Theta_se.max()):.1e}",
        ]
        for block in result.blocks
    ]


def _means(K: Tensor) -> tuple[float, float]:
    a = len(K)
    diagonal = float(K.trace())
    return diagonal / a, (float(K.sum()) - diagonal) / max(a * (a - 1), 1)


def _found(result: Kernels) -> list[str]:
    head, spec = result.head, result.spec
    heads = "Gaussian scores (C → ∞)" if spec.head_dim is None else f"heads of {spec.head_dim}"
    found = [
        f"At the head G is {_means(head.G)[0]:.4f} and Θ {_means(head.Theta)[0]:.4f} on average "
        f"over the diagonal, from {result.samples:,} draws an attention block; {heads}.",
    ]
    stated = spec.C.model_fields_set | spec.Lambda.model_fields_set
    if spec.tied and stated & {"head", "head_bias"}:
        found.append("The head is tied: its constants are those of word; the head's are not used.")
    for group, each in head.by_group.items():
        share = float(each.value.trace() / head.Theta.trace())
        size = result.gradient_sizes.get(group)
        more = "" if size is None else f"; |g| is {size:.3g} times the paper's estimate"
        found.append(f"{group} gives {100 * share:.1f} % of Θ's trace{more}.")
    return found


def _print(result: Kernels, run: RunFolder) -> None:
    for sentence in _found(result):
        typer.echo(sentence)
    for line in aligned([COLUMNS, *_rows(result)]):
        typer.echo(line)
    typer.echo(f"Page: {run.path / 'report.html'}")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
