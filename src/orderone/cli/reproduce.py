"""``orderone reproduce NAME``: a published figure or table, measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderone.cli.arguments import counted

if TYPE_CHECKING:
    from orderone.experiments.reproduction import Verdict

ANSWER = {True: "held", False: "did not hold", None: "cannot be told at this scale"}


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; see --list.")] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop (minutes) or paper (days).")
    ] = "smoke",
    everything: Annotated[bool, typer.Option("--all", help="Every experiment.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="What there is.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="What the paper's exact setting would take.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Trainings side by side; by default one a core.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the paper's own data, for --scale paper.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a published figure or table again, and give a verdict on its claim."""
    from orderone.core.processors import cores
    from orderone.experiments.reproduction import NAMES

    if listing:
        _list(to, as_json)
        return
    chosen = _chosen(list(names or []), everything, NAMES)
    if dry_run:
        _dry_run(chosen, as_json)
        return
    side_by_side = processes or cores()
    verdicts = _measured(
        chosen, scale, seed=seed, to=to, processes=side_by_side, data=data, quiet=as_json
    )
    if as_json:
        typer.echo(json.dumps({"results": [_json(verdict) for verdict in verdicts]}))
    if any(verdict.held is False for verdict in verdicts):
        raise typer.Exit(1)


def _chosen(names: list[str], everything: bool, known: tuple[str, ...]) -> list[str]:
    from orderone.core.errors import ConfigError
    from orderone.experiments.reproduction import experiment

    if everything == bool(names):
        raise ConfigError(
            "both names and --all" if names else "no experiment named",
            expected="names of experiments, or --all",
            do="orderone reproduce --list tells what there is",
        )
    for name in names:
        experiment(name)
    return list(known) if everything else names


def _measured(
    names: list[str],
    scale: str,
    *,
    seed: int,
    to: Path,
    processes: int,
    data: Path | None,
    quiet: bool,
) -> list[Verdict]:
    from orderone.core.errors import DataError, MissingPackageError
    from orderone.core.run import new_run_path
    from orderone.experiments.reproduction import reproduce as measure
    from orderone.experiments.reproduction import scale_named
    from orderone.experiments.results import unmeasured

    size = scale_named(scale)
    verdicts: list[Verdict] = []
    for name in names:
        path = new_run_path(to, name)
        try:
            with counted(name, quiet=quiet) as progress:
                verdict = measure(
                    name,
                    scale=size,
                    to=path,
                    seed=seed,
                    processes=processes,
                    data=data,
                    progress=progress,
                )
        except (DataError, MissingPackageError) as error:
            if len(names) == 1:
                raise
            verdict = unmeasured(name, size, error)
        verdicts.append(verdict)
        if not quiet:
            _print(verdict, path)
    return verdicts


def _print(verdict: Verdict, path: Path) -> None:
    typer.echo(f"{verdict.name}: {ANSWER[verdict.held]}. {verdict.claim}.")
    typer.echo(f"  published  {verdict.published}")
    typer.echo(f"  measured   {verdict.measured}")
    if verdict.as_coded is not None:
        typer.echo(f"  as coded   {verdict.as_coded}")
    if verdict.why:
        typer.echo(f"  {verdict.why}")
    typer.echo(f"  page       {path / 'report.html'}")


def _json(verdict: Verdict) -> dict[str, Any]:
    shown = ("name", "claim", "published", "measured", "held", "as_coded", "scale", "seconds")
    return {name: getattr(verdict, name) for name in shown}


def _list(root: Path, as_json: bool) -> None:
    from orderone.experiments.reproduction import NAMES, claim, experiment, particulars
    from orderone.experiments.results import last_result

    found = {name: last_result(name, root) for name in NAMES}
    rows = [
        {
            "name": name,
            "claim": claim(name),
            "published": experiment(name).PUBLISHED,
            **{key.lower(): text for key, text in particulars(name).items()},
            "last": None if last is None else _json(last.verdict),
        }
        for name, last in found.items()
    ]
    if as_json:
        typer.echo(json.dumps({"experiments": rows}))
        return
    for row, last in zip(rows, found.values(), strict=True):
        typer.echo(f"{row['name']:<24}{row['claim']}")
        typer.echo(f"{'':<24}{row.get('source', '')}; {row.get('cost', '')}")
        if last is not None:
            verdict = last.verdict
            typer.echo(
                f"{'':<24}last: {ANSWER[verdict.held]} ({verdict.scale}): {verdict.measured}"
            )


def _dry_run(names: list[str], as_json: bool) -> None:
    from orderone.experiments.reproduction import experiment

    plans = {name: experiment(name).paper() for name in names}
    if as_json:
        typer.echo(json.dumps({name: vars(plan) for name, plan in plans.items()}))
        return
    for name, plan in plans.items():
        if not plan.steps:
            typer.echo(f"{name}: {plan.note or 'nothing is trained'}")
            continue
        typer.echo(
            f"{name}: {plan.parameters:,} parameters, {plan.steps:,} steps, "
            f"{plan.tokens:,} tokens, {plan.flops:.2g} FLOPs, "
            f"{plan.memory_bytes / 2**30:.1f} GiB of weights and moments; "
            f"{plan.hours(1e14):,.1f} h at 100 TFLOP/s. {plan.note}"
        )
