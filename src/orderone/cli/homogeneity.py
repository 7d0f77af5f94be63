"""``orderone homogeneity``: the degree of every intermediate in the parameters, and its origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.plan import MODEL_HELP

if TYPE_CHECKING:
    from torch import Tensor, nn

    from orderone.asymptotics.trace import Line, ModuleDegree, Trace
    from orderone.core.run import RunFolder
    from orderone.report.page import Section


def homogeneity(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    unscaled: Annotated[
        str, typer.Option(help="Regular expression of parameters to leave as they are.")
    ] = "",
    width: Annotated[int | None, typer.Option(help="Width to scale the model to.")] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="Print every operation, not modules alone.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and of the input.")] = 0,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print how everything inside a model grows as its parameters are multiplied by c."""
    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.sources import source

    found = source(model)
    if found.kind != "factory":  # which need not know of shapes without memory
        _require_memory(found.build(width, device="meta"))
    built = found.build(width, seed=seed).double().eval()
    trace = _traced(built, found.task(built).example(1, seed), unscaled)
    zeros = [name for name, parameter in built.named_parameters() if not bool(parameter.any())]
    settings = {"model": model, "unscaled": unscaled or None, "width": width}
    path = to or new_run_path(name="homogeneity")
    run = RunFolder.create(path, command="homogeneity", config=settings, seed=seed)
    _keep(run, trace, zeros, title=f"orderone homogeneity {model}")
    if as_json:
        typer.echo(json.dumps(_json(trace, zeros)))
        return
    for line in _operations(trace) if operations else _modules(trace):
        typer.echo(line)
    for sentence in [*_found(trace, zeros), f"Page: {run.path / 'report.html'}"]:
        typer.echo(sentence)


def _require_memory(shapes: nn.Module) -> None:
    """Refuses what would not fit: 8 bytes a parameter, whose degrees are those of any width."""
    from orderone.core.errors import ConfigError

    numbers = sum(parameter.numel() for parameter in shapes.parameters())
    free = _free_memory()
    if free is not None and 8 * numbers > 0.8 * free:
        raise ConfigError(
            f"a model of {numbers:,} parameters, {8 * numbers / 2**30:.1f} GiB in float64",
            expected=f"at most four fifths of the {free / 2**30:.1f} GiB that are free",
            do="give a smaller --width: a model has the same degrees at every width",
        )


def _free_memory() -> int | None:
    """Bytes that the system could give; None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _keep(run: RunFolder, trace: Trace, zeros: list[str], *, title: str) -> None:
    """The degree of every operation as records, a picture of it, and the page."""
    from orderone.core.files import write_atomically
    from orderone.core.record import Record
    from orderone.report.page import Section, page

    with run.writer() as records:
        for line in trace.lines:
            labels = {"module": line.module, "operation": line.operation}
            records.write(Record(line.number, "degree", float(line.degree), labels))
    columns = ("module", "degree", "kind", "from")
    cells = [
        (each.module or "(model)", str(each.degree), each.kind, _origin(trace, each))
        for each in trace.modules
    ]
    sections = [
        *_drawn(run, trace),
        Section(heading="By module", columns=columns, rows=cells),
        Section(heading="Every operation", code="\n".join(_operations(trace)), folded=True),
    ]
    text = page(title=title, found=_found(trace, zeros), sections=sections)
    write_atomically(run.path / "report.html", text.encode())
    summary = _json(trace, zeros)
    run.finish("done", {k: summary[k] for k in ("degree", "exact", "beside", "margin")})


def _drawn(run: RunFolder, trace: Trace) -> list[Section]:
    """The degree of every operation as a picture; nothing where there are none."""
    from orderone.report.charts import lines, save_chart
    from orderone.report.page import Section

    if not trace.lines:
        return []
    chart = lines(
        run.records().select("step", "value", "module", "operation"),
        x=("step", "operation, in the order in which they run"),
        y=("value", "degree in the parameters"),
        title="Degree of every intermediate",
        points=True,
    )
    save_chart(chart, run.path / "degrees.svg")
    return [
        Section(
            heading="Degree by operation",
            chart=chart,
            alternative="Degree of homogeneity of each operation's result, from input to output",
        )
    ]


def _traced(model: nn.Module, batch: Mapping[str, Tensor], unscaled: str) -> Trace:
    import torch

    from orderone.asymptotics.interpret import graded_parameters
    from orderone.core.errors import ModelError, OrderoneError
    from orderone.scaling.tasks import forward

    inputs = {
        name: value.double() if value.is_floating_point() else value
        for name, value in batch.items()
    }
    with graded_parameters(model, scaled=_scaled(model, unscaled)) as trace:
        try:
            forward(model, inputs)
        except (OrderoneError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ModelError(
                f"a {type(model).__name__} that fails on a guessed batch of "
                f"{', '.join(inputs)} ({type(error).__name__}: {_first_line(error)})",
                expected="a model that takes it",
                do="correct the model, or call orderone.asymptotics.degrees in Python",
            ) from error
    return trace


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _scaled(model: nn.Module, unscaled: str) -> list[str] | None:
    """Names of all parameters but those in which the pattern is found."""
    import re

    from orderone.core.errors import ConfigError

    if not unscaled:
        return None
    try:
        left = re.compile(unscaled)
    except re.error as error:
        raise ConfigError(
            f"--unscaled '{unscaled}' ({error})",
            expected="a regular expression",
            do="escape special characters with a backslash",
        ) from error
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    kept = [name for name in names if not left.search(name)]
    if len(kept) == len(names):
        raise ConfigError(
            f"--unscaled '{unscaled}', found in none of {len(names)} parameters",
            expected=f"a part of a name such as '{names[0]}'" if names else "a model with some",
            do="correct the pattern",
        )
    return kept


def _modules(trace: Trace) -> list[str]:
    names = [each.module or "(model)" for each in trace.modules]
    width = max(map(len, names), default=0)
    return [
        f"{name:<{width}}  degree {each.degree!s:>4}  {each.kind}, from {_origin(trace, each)}"
        for name, each in zip(names, trace.modules, strict=True)
    ]


def _origin(trace: Trace, each: ModuleDegree) -> str:
    """The operation that made a module's output, with the degrees that went in."""
    if isinstance(each.source, str):
        return each.source
    line = trace.lines[each.source]
    inside = "" if line.module == each.module else f" in {line.module or 'the model'}"
    given = ", ".join(str(origin.degree) for origin in line.inputs)
    return f"{line.operation}({given}){inside}" + (f" [{line.note}]" if line.note else "")


def _operations(trace: Trace) -> list[str]:
    return [str(line) for line in trace.lines]


def _found(trace: Trace, zeros: list[str]) -> list[str]:
    if not trace.output:
        return ["The output depends on no scaled parameter."]
    k = trace.degree
    said = [
        f"f(x; cθ) = c^{k} f(x; θ) for every c."
        if trace.exact
        else f"f(x; cθ) / c^{k} has a limit as c → ∞; beside it: {', '.join(trace.beside)}."
    ]
    if trace.output[0].vanishes:
        said.append(f"All leading coefficients are 0: {k} is a bound, and the degree is unknown.")
    if trace.margin is not None:
        said.append(
            f"Attention saturates; of a row's scores the two largest differ by {trace.margin:.1e} "
            "of the largest or more."
        )
    if "tie" in trace.beside:
        said.append("Some attention ties as far as is known: see --operations.")
    if zeros:
        said.append(
            f"{len(zeros)} parameters are zero here and count for nothing, such as {zeros[0]}."
        )
    return said


def _json(trace: Trace, zeros: list[str]) -> dict[str, Any]:
    return {
        "degree": None if trace.degree is None else float(trace.degree),
        "exact": trace.exact,
        "vanishes": bool(trace.output) and trace.output[0].vanishes,
        "beside": trace.beside,
        "margin": trace.margin,
        "zero_parameters": zeros,
        "modules": [
            {"module": each.module, "kind": each.kind, "degree": float(each.degree)}
            for each in trace.modules
        ],
        "operations": [_line(each) for each in trace.lines],
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "module": line.module,
        "operation": line.operation,
        "inputs": [{"from": each.source, "degree": float(each.degree)} for each in line.inputs],
        "degree": float(line.degree),
        "note": line.note,
    }
