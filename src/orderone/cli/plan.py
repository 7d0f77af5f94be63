"""``orderone plan``: how every parameter of a model should start and learn; allocates nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from orderone.core.run import RunFolder
    from orderone.scaling.plan import Plan

MODEL_HELP = (
    "preset:NAME, a folder or config.json in Hugging Face format, timm:NAME, or "
    "package.module:factory."
)


def plan(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    strategy: Annotated[
        str | None,
        typer.Option(help="neural-tangent (default), hybrid, maximal-update or standard."),
    ] = None,
    s: Annotated[float | None, typer.Option(help="Meta-exponent in [0, 1], for strategy.")] = None,
    width: Annotated[int | None, typer.Option(help="Width to scale the model to.")] = None,
    base_width: Annotated[
        int | None, typer.Option(help="Make everything relative to the model at this width.")
    ] = None,
    constants: Annotated[
        str | None, typer.Option(help="C_G: ones, vision, language or language-word.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Also print the optimizer's groups.")] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of those groups.")] = 0.0,
    to: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print initialisation and learning rate factors of every parameter."""
    from orderone.core.run import RunFolder, new_run_path
    from orderone.experiments.sources import source
    from orderone.scaling.plan import plan as make_plan

    _require_rates(lr, weight_decay)
    found = source(model)
    # Shapes are all that a plan needs; a base model's weights are measured, so that one is made.
    built = found.build(width, device="meta")
    made = make_plan(
        built,
        strategy,
        s=s,
        constants=constants,
        base_width=base_width,
        make=None if base_width is None else lambda n: found.build(n, device="cpu", seed=0),
    )
    groups = None if lr is None else _groups(made, built, lr, weight_decay)
    settings = {"model": model, "strategy": strategy, "s": s, "width": width}
    settings |= {"base_width": base_width, "constants": constants, "lr": lr}
    settings |= {"weight_decay": weight_decay}
    path = to or new_run_path(name="plan")
    run = RunFolder.create(path, command="plan", config=settings, seed=None)
    _keep(run, made, groups or [], title=f"orderone plan {model}")
    if as_json:
        typer.echo(json.dumps(made.summary() | ({} if groups is None else {"groups": groups})))
        return
    typer.echo(str(made))
    for group in groups or ():
        typer.echo(
            f"group: lr {group['lr']:.4g}, weight decay {group['weight_decay']:.4g}, "
            f"{len(group['names'])} tensors such as {group['names'][0]}"
        )
    typer.echo(f"Page: {run.path / 'report.html'}")


def _keep(run: RunFolder, made: Plan, groups: list[dict[str, Any]], *, title: str) -> None:
    """The plan as ``Plan.from_json`` reads it, its numbers as records, and the page."""
    from orderone.core.files import write_atomically
    from orderone.core.record import Record
    from orderone.report.page import Section, page
    from orderone.scaling import table

    write_atomically(run.path / "plan.json", made.to_json().encode())
    with run.writer() as records:
        for row in made.rows:
            labels = {"parameter": row.name, "role": row.role}
            records.write(Record(0, "lr_factor", row.lr_factor, labels))
            if row.init_std is not None:
                records.write(Record(0, "init_std", row.init_std, labels))
    sections = [
        Section(heading="By role", columns=table.SUMMARY, rows=table.summary_cells(made.rows)),
        Section(
            heading="Every parameter",
            columns=table.LISTING,
            rows=[table.listing_cells(row) for row in made.rows],
            folded=True,
        ),
    ]
    if groups:
        columns = ("lr", "weight decay", "tensors", "such as")
        rows = [_group_cells(group) for group in groups]
        sections.insert(1, Section(heading="Groups of the optimizer", columns=columns, rows=rows))
    said = [line for line in (made.headline, made.footline) if line]
    text = page(title=title, found=said, sections=sections)
    write_atomically(run.path / "report.html", text.encode())
    run.finish("done", {k: v for k, v in made.summary().items() if k != "rows"})


def _group_cells(group: dict[str, Any]) -> tuple[str, ...]:
    names = group["names"]
    return (f"{group['lr']:.4g}", f"{group['weight_decay']:.4g}", str(len(names)), names[0])


def _groups(made: Plan, model: nn.Module, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """The optimizer's groups, with names in place of tensors."""
    groups = made.param_groups(lr, weight_decay, model=model)
    return [
        {"lr": g["lr"], "weight_decay": g["weight_decay"], "names": list(g["param_names"])}
        for g in groups
    ]


def _require_rates(lr: float | None, weight_decay: float) -> None:
    if (lr is not None and not lr > 0) or not weight_decay >= 0:
        raise ConfigError(
            f"--lr {lr} --weight-decay {weight_decay}",
            expected="a positive learning rate and a weight decay from 0 on",
            do="correct them",
        )
    if lr is None and weight_decay:
        raise ConfigError(
            f"--weight-decay {weight_decay} without --lr",
            expected="both, for the optimizer's groups",
            do="add --lr",
        )
