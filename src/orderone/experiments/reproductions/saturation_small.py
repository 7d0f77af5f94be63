"""Small language models reach full saturation.

Source   [MRGSS21] §4.1, "Small transformers reach full saturation"
Expect   as written a cosine of 0.995 or more at the last layer of branch and post, with two other
         tokens no more alike than 0.99; as coded the same, from models whose mask leaks
Cost     smoke 20 s on one core; laptop 12 min on 2 cores; paper half a day on one large GPU
Differs  Penn alone; c = 1024; saturated against the same network before training, and with
         controls. laptop: 4 layers, n 128, one epoch, and branch at learning rate 1e-2 as well;
         smoke: 2 layers, n 32, 800 sentences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from orderone.experiments.dry_run import DryRun
from orderone.experiments.levels import CONTROLS, EXPLAINED, keep_levels, level_row, written
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.small_models import (
    SmallModel,
    TrainedModel,
    dry_run,
    paper_model,
    small_model,
    trained_all,
)
from orderone.experiments.small_saturation import last_level, small_saturation
from orderone.probes.saturation import Level, Saturation
from orderone.report.charts import estimates, lines
from orderone.report.page import Section

PUBLISHED = "1.00 for every small language model, of both placements"
FULL = 0.995
"""What rounds to the published 1.00."""
FAST = 1e-2
"""A learning rate at which one epoch lets the norm grow as much as five at App. A's."""


def reproduce(stage: Stage) -> Outcome:
    """Both placements under both masks; branch once more at a larger rate."""
    fast = stage.scale != "smoke"
    models = trained_all(stage, [small_model(stage, **each) for each in _variants(fast=fast)])
    sentences = stage.pick(smoke=30, laptop=100, paper=200)
    found: list[_Found] = []
    for done, model in enumerate(models):
        stage.progress(done, len(models))
        found.append(_Found(model=model, saturation=small_saturation(model, sentences)))
        found[-1].keep(stage)
    stage.progress(len(models), len(models))
    as_written = [each for each in found if each.chosen.mask == "causal"]
    asked = [each for each in as_written if each.chosen.lr != FAST]
    reached = all(each.full for each in asked)
    return Outcome(
        measured=f"{_told(as_written)}. {_size(as_written[0], sentences)}",
        # In seconds a norm has no time to grow: not reached is no finding.
        held=reached or (None if stage.scale == "smoke" else False),
        why=_why(found),
        as_coded=f"zero mask, padding a word: {_told([e for e in found if e not in as_written])}",
        sections=[_last(found), _by_layer(found), _table(found)],
    )


def paper() -> DryRun:
    """Two placements, two masks; branch once more."""
    return dry_run([paper_model(**each) for each in _variants(fast=True)])


def _variants(*, fast: bool) -> list[dict[str, Any]]:
    # Those as coded first: they take longest.
    asked: list[dict[str, Any]] = [
        {"corpus": "penn", "placement": placement, "mask": mask}
        for mask in ("zero", "causal")
        for placement in ("branch", "post")
    ]
    return asked + ([{"corpus": "penn", "placement": "branch", "lr": FAST}] if fast else [])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    model: TrainedModel
    saturation: Saturation

    @property
    def chosen(self) -> SmallModel:
        return self.model.chosen

    @property
    def name(self) -> str:
        return self.chosen.name.removeprefix(f"{self.chosen.corpus} ")

    @property
    def last(self) -> Level:
        return last_level(self.saturation)

    @property
    def full(self) -> bool:
        """Saturated, and not constant."""
        return self.last.cosine >= FULL and not self.empty

    @property
    def empty(self) -> bool:
        return self.saturation.collapsed or self.last.says_nothing

    @property
    def random(self) -> Level:
        assert self.saturation.random is not None
        return self.saturation.random[-1]

    @property
    def sentence(self) -> str:
        same = self.saturation.agreement
        named = "collapsed: " if self.empty else "at chance: " if self.last.at_chance else ""
        return (
            f"{self.name} {named}{self.last.cosine:.3f} from {self.random.cosine:.3f} before "
            f"training (other tokens {written(self.last.other)}, cross {written(self.last.cross)}, "
            f"centred {written(self.last.centred)}, same word predicted {written(same)})"
        )

    def keep(self, stage: Stage) -> None:
        before = self.saturation.random or ()
        for when, levels in (("random", before), ("trained", self.saturation.layers)):
            keep_levels(stage, levels, model=self.name, when=when)
        for what in ("agreement", "chance"):
            value = getattr(self.saturation, what)
            if value is not None:
                stage.record(what, value, model=self.name)
        stage.record("accuracy", self.model.test.accuracy, model=self.name)
        stage.record("development_loss", min(self.model.losses.values()), model=self.name)


def _told(found: Sequence[_Found]) -> str:
    return "; ".join(each.sentence for each in found)


def _size(found: _Found, sentences: int) -> str:
    chosen = found.chosen
    return (
        f"{chosen.layers} layers, n {chosen.n}, {found.model.steps:,} steps of {chosen.batch} "
        f"sentences; measured on {min(sentences, len(found.model.text.validation))}"
    )


def _why(found: Sequence[_Found]) -> str:
    said: list[str] = []
    if empty := [each for each in found if each.empty]:
        accuracies = ", ".join(f"{e.name} (accuracy {e.model.test.accuracy:.4f})" for e in empty)
        said.append(
            f"Collapsed, so that a cosine near 1 says nothing: {accuracies}; "
            "two tokens are as alike as one in both networks."
        )
    if chance := [each.name for each in found if not each.empty and each.last.at_chance]:
        said.append(f"No nearer to itself in the saturated network than chance: {_and(chance)}.")
    number = [each.name for each in found if each.last.cosine >= FULL]
    full = [each.name for each in found if each.full]
    said.append(
        f"The published number is reached by {_and(number) or 'none here'}; by networks whose "
        f"tokens differ: {_and(full) or 'none here'}."
    )
    if any(each.chosen.lr == FAST for each in found):
        said.append(
            "A larger rate lets the norm grow further in one epoch, and saturation follows it."
        )
    return " ".join(said)


def _and(names: Sequence[str]) -> str:
    return ", ".join(names)


def _last(found: Sequence[_Found]) -> Section:
    """What is claimed and what it is to be held against, at one glance."""
    names = {key: name for key, name in CONTROLS.items() if key != "se"}
    rows = [
        {
            "model": each.name,
            "what": what,
            "cosine": getattr(each.last, key),
            "error": each.last.se if key == "cosine" else None,
        }
        for each in found
        for key, what in names.items()
    ]
    return Section(
        heading="Saturation of the last layer, beside its controls",
        text=EXPLAINED,
        chart=estimates(
            pl.DataFrame(rows, schema_overrides={"error": pl.Float64, "cosine": pl.Float64}),
            x=("model", "model"),
            y=("cosine", "cosine"),
            error="error",
            colour=("what", "between"),
            title="Is it saturation, or is every token the same?",
            subtitle="last layer, trained",
        ),
        alternative="Cosine to the saturated network and its controls, a column each model",
    )


def _by_layer(found: Sequence[_Found]) -> Section:
    rows = [
        {"layer": layer, "model": each.name, "cosine": level.cosine}
        for each in found
        for layer, level in enumerate(each.saturation.layers)
    ]
    return Section(
        heading="By layer",
        text="Every residual path counts as a layer: attention and MLP in turn; 0 is the stem.",
        chart=lines(
            pl.DataFrame(rows),
            x=("layer", "layer"),
            y=("cosine", "cosine to the saturated network"),
            colour=("model", "model"),
            title="Saturation by layer, trained",
            points=True,
        ),
        alternative="Cosine to the saturated network over layers, a line each model",
    )


def _table(found: Sequence[_Found]) -> Section:
    rows = [
        (each.name, when, level.layer, *level_row(level))
        for each in found
        for when, levels in (
            ("random", each.saturation.random or ()),
            ("trained", each.saturation.layers),
        )
        for level in levels
    ]
    return Section(
        heading="Every layer",
        columns=("model", "weights", "layer", *CONTROLS.values()),
        rows=rows,
    )
