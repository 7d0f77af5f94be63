"""Pretrained transformers are nearer to their saturated networks than random ones.

Source   [MRGSS21] §4.1, Fig. 2: BERT, RoBERTa, T5 and XLNet, base, on 100 sentences of Brown
Expect   trained above random at every layer whose cosine is not the same for all
Cost     smoke 15 s on one core; laptop 1 min on one core; paper 10 min on one GPU
Differs  but for paper the one model is all-MiniLM-L6-v2 of a package, a BERT-like encoder of 6
         layers, d 384. Brown from --data (a folder with brown.zip) or NLTK's; else Penn, else the
         sources of Python's library. c = 1024; random ones in evaluation mode over several
         seeds, and as coded; controls
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from orderone.experiments.dry_run import DryRun
from orderone.experiments.levels import CONTROLS, EXPLAINED, keep_levels, level_row
from orderone.experiments.pretrained import (
    PUBLISHED_KINDS,
    Result,
    Task,
    Text,
    folders_of,
    measure,
    sentences_of,
)
from orderone.experiments.pretrained_sizes import parameters_of
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.workers import workers
from orderone.probes.saturation import Level
from orderone.report.charts import estimates
from orderone.report.page import Section

PUBLISHED = (
    "trained above random at every layer; last layer of T5 and XLNet ≥ 0.9, of RoBERTa 0.65 (0.94 "
    "before it), random ~0 but for T5"
)
SAME = 1e-6
"""Layers whose cosines differ by less are the same for all: a norm behind the words undoes c."""
ALIKE = 0.1
"""Of two tokens, one in each network: above it that is told."""
SEEDS = 5
_TOKENS = 30


def reproduce(stage: Stage) -> Outcome:
    """Every model beside random initialisations of it."""
    count = stage.pick(smoke=15, laptop=100, paper=100)
    seeds = tuple(stage.seed + k for k in range(stage.pick(smoke=2, laptop=SEEDS, paper=SEEDS)))
    text = sentences_of(stage, count)
    tasks = [
        Task(
            name=name,
            folder=folder,
            sentences=text.sentences,
            seeds=seeds,
            device=str(stage.device),
        )
        for name, folder in folders_of(stage).items()
    ]
    results = _measured(stage, tasks)
    for each in results:
        _keep(stage, each)
    below = {each.name: layers for each in results if (layers := _below(each))}
    return Outcome(
        measured=(
            f"{'; '.join(map(_sentence, results))}. {len(text.sentences)} sentences of "
            f"{text.name}, {len(seeds)} seeds"
        ),
        held=not below,
        why=_why(results, below, text),
        as_coded=(
            "random initialisations with dropout on: "
            + "; ".join(f"{each.name} {_end(each.with_dropout):.3f}" for each in results)
            + " at the last layer"
        ),
        sections=[*map(_picture, results), *map(_table, results)],
    )


def paper() -> DryRun:
    """Forward passes of four models and of their random initialisations."""
    parameters = parameters_of(PUBLISHED_KINDS)
    passes = 2 + 4 * SEEDS
    tokens = len(parameters) * passes * 100 * _TOKENS
    sizes = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    return DryRun(
        parameters=max(parameters.values()),
        steps=0,
        tokens=tokens,
        flops=2.0 * sum(parameters.values()) * passes * 100 * _TOKENS,
        memory_bytes=4 * max(parameters.values()),
        note=f"nothing is trained; {passes} forward passes over 100 sentences, about {tokens:,} "
        f"tokens in all, for each of {sizes} parameters; weights from folders in --data",
    )


def _measured(stage: Stage, tasks: Sequence[Task]) -> list[Result]:
    found: dict[int, Result] = {}
    processes = min(stage.processes, len(tasks)) if stage.scale == "laptop" else 1
    with workers(measure, processes=processes) as spread:
        for index, result in spread(tasks):
            found[index] = result
            stage.progress(len(found), len(tasks))
    return [found[index] for index in range(len(tasks))]


def _pairs(result: Result) -> list[tuple[Level, Level]]:
    assert result.found.random is not None
    return list(zip(result.found.layers, result.found.random, strict=True))


def _below(result: Result) -> list[str]:
    return [a.layer for a, b in _pairs(result) if a.cosine < b.cosine - SAME]


def _end(by_layer: dict[str, float]) -> float:
    return list(by_layer.values())[-1]


def _sentence(result: Result) -> str:
    last, random = _pairs(result)[-1]
    above = len(_pairs(result)) - len(_below(result))
    same = result.found.agreement
    agreement = "" if same is None else f", {same:.0%} of predicted words the same"
    return (
        f"{result.name}: {last.cosine:.3f} at the last layer, random {random.cosine:.3f} ± "
        f"{random.se or 0:.3f}; at or above random at {above} of {len(_pairs(result))} layers "
        f"(centred {last.centred or 0:.3f}, random {random.centred or 0:.3f}){agreement}"
    )


def _why(results: Sequence[Result], below: dict[str, list[str]], text: Text) -> str:
    said: list[str] = []
    for name, layers in below.items():
        said.append(f"{name} is below random at layers {', '.join(layers)}.")
    for each in results:
        _, random = _pairs(each)[-1]
        if chance := [level.layer for level, _ in _pairs(each) if level.at_chance]:
            said.append(
                f"At layers {', '.join(chance)} of {each.name} a token is no nearer to itself in "
                "the saturated network than to other tokens: its cosine there is chance."
            )
        if (random.cross or 0.0) > ALIKE:
            said.append(
                f"Two tokens of a random {each.name} have {random.cross:.2f}: its cosine is mostly "
                "what all of them share."
            )
        dropped, calm = _end(each.with_dropout), random.cosine
        said.append(
            f"Dropout takes the last layer of a random {each.name} from {calm:.3f} to "
            f"{dropped:.3f}: the published ~0 "
            + ("needs no dropout." if abs(calm) < 0.1 else "is that of dropout.")
        )
    if "MiniLM" in {each.name for each in results}:
        said.append("MiniLM is none of the paper's models: distilled, and trained on pairs.")
    if text.name != "Brown":
        said.append(f"Brown is not on this machine: sentences are {text.name}'s.")
    return " ".join(said)


def _keep(stage: Stage, result: Result) -> None:
    for when, levels in (("trained", result.found.layers), ("random", result.found.random or ())):
        keep_levels(stage, levels, model=result.name, when=when)
    for layer, cosine in result.with_dropout.items():
        labels = {"model": result.name, "layer": layer, "when": "random, dropout on"}
        stage.record("saturation.cosine", cosine, step=0, **labels)
    for what in ("agreement", "chance"):
        value = getattr(result.found, what)
        if value is not None:
            stage.record(what, value, model=result.name)


def _picture(result: Result) -> Section:
    rows: list[dict[str, Any]] = []
    for level, random in _pairs(result):
        shown = {
            "trained": (level.cosine, level.se),
            "random": (random.cosine, random.se),
            "random, dropout on (as coded)": (result.with_dropout[level.layer], None),
            "trained, another token (chance)": (level.cross, None),
            "random, another token (chance)": (random.cross, None),
        }
        rows += [
            {"layer": level.layer, "network": name, "cosine": cosine, "error": error}
            for name, (cosine, error) in shown.items()
        ]
    return Section(
        heading=f"{result.name} by layer, Fig. 2",
        text=EXPLAINED,
        chart=estimates(
            pl.DataFrame(rows, schema_overrides={"cosine": pl.Float64, "error": pl.Float64}),
            x=("layer", "layer; 0 is the embeddings"),
            y=("cosine", "cosine to the saturated network"),
            error="error",
            colour=("network", "network"),
            reference=("cosine", "to guide the eye"),
            title=f"{result.name}: saturation by layer",
            subtitle=f"{result.found.sentences} sentences, c = {result.found.c:g}",
        ),
        alternative=f"Cosine to the saturated network by layer, {result.name} and random ones",
    )


def _table(result: Result) -> Section:
    rows = [
        (level.layer, when, *level_row(level))
        for pair in _pairs(result)
        for when, level in zip(("trained", "random"), pair, strict=True)
    ]
    return Section(
        heading=f"{result.name}, every layer",
        columns=("layer", "weights", *CONTROLS.values()),
        rows=rows,
    )
