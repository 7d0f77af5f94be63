"""Heads of saturated small language models attend to one position, or to about half of all.

Source   [MRGSS21] §4.3, Fig. 3
Expect   as written every head at 1.00 positions, mean-like heads at c = 1 alone; as coded some
         heads at the upper mode, (T − 1)/2 + 1/T = 41.012 positions, all of them in the future
Cost     smoke 15 s on one core; laptop 10 min on 2 cores; paper half a day on one large GPU
Differs  c = 1024. As written: −∞ on the future, padding masked, its rows left out. laptop: 4
         layers, 4 heads, n 128, one epoch; smoke: 2 layers, 2 heads, n 32, 800 sentences
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import polars as pl

from orderone.experiments.dry_run import DryRun
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.small_models import (
    TrainedModel,
    dry_run,
    paper_model,
    small_model,
    trained_all,
)
from orderone.experiments.small_saturation import development_batches
from orderone.probes.heads import MOST, HeadLook, Heads, heads, upper_mode
from orderone.report.charts import estimates
from orderone.report.maps import histogram
from orderone.report.page import Section

PUBLISHED = "two modes, at 1 and at about 41 positions of sentences padded to 83: arg max and mean"
NEAR = 0.5
"""A head is at a mode that it is nearer to than this, in positions."""
_NUMBERS = ("saturated_positions", "legal", "future", "pad", "entropy", "effective_positions")


def reproduce(stage: Stage) -> Outcome:
    """Both placements under both masks, on development sentences of Penn."""
    models = trained_all(stage, [small_model(stage, **each) for each in _variants()])
    sentences = stage.pick(smoke=40, laptop=200, paper=200)
    found: list[_Found] = []
    for done, model in enumerate(models):
        stage.progress(done, len(models))
        found.append(_Found(model=model, heads=_looks(model, sentences)))
        found[-1].keep(stage)
    stage.progress(len(models), len(models))
    as_written = [each for each in found if not each.leaks]
    as_coded = [each for each in found if each.leaks]
    measured = (
        sentences if stage.scale != "smoke" else len(models[0].text.validation.first(sentences))
    )
    return Outcome(
        measured=(
            f"{'; '.join(each.sentence for each in as_written)}. {_size(models[0], measured)}"
        ),
        held=all(each.mean_heads for each in as_written),
        why=_why(as_written, as_coded),
        as_coded="; ".join(each.sentence_coded for each in as_coded),
        sections=[_histogram(found), _at_one(as_written), _split(found), _table(found)],
    )


def paper() -> DryRun:
    """Two placements, two masks."""
    return dry_run([paper_model(**each) for each in _variants()])


def _variants() -> list[dict[str, str]]:
    # Those as coded first: they take longest.
    return [
        {"corpus": "penn", "placement": placement, "mask": mask}
        for mask in ("zero", "causal")
        for placement in ("branch", "post")
    ]


def _looks(model: TrainedModel, sentences: int) -> Heads:
    """As coded padding is a word, but known for what it is, so that it can be told apart."""
    pad, leaks = model.text.vocabulary.pad, model.chosen.mask == "zero"
    batches = [
        {**batch, "real": batch["tokens"] != pad} if leaks else batch
        for batch in development_batches(model, sentences)
    ]
    return heads(model.model, batches, as_coded=leaks)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    model: TrainedModel
    heads: Heads

    @property
    def name(self) -> str:
        return self.model.chosen.name.removeprefix("penn ")

    @property
    def leaks(self) -> bool:
        return self.model.chosen.mask == "zero"

    @property
    def all(self) -> tuple[HeadLook, ...]:
        return self.heads.heads

    @property
    def mean_heads(self) -> int:
        """Heads that attend evenly to all that they may, saturated."""
        return sum(each.kind == "mean" for each in self.all)

    @property
    def sentence(self) -> str:
        counts = [each.saturated_positions for each in self.all]
        even = [each.spread for each in self.all if each.spread is not None]
        return (
            f"{self.name}: {len(counts)} heads at {min(counts):.2f} to {max(counts):.2f} "
            f"positions; at c = 1 {fmean(e.effective_positions for e in self.all):.1f} of "
            f"{self.all[0].legal_positions:.1f} effective, {sum(s >= MOST for s in even)} heads "
            f"mean-like"
        )

    @property
    def upper(self) -> list[HeadLook]:
        """Heads at the upper mode."""
        mode = upper_mode(self.model.chosen.T)
        return [each for each in self.all if abs(each.saturated_positions - mode) < NEAR]

    @property
    def sentence_coded(self) -> str:
        upper = self.upper
        lower = sum(abs(each.saturated_positions - 1) < NEAR for each in self.all)
        said = f"{self.name}: {lower} of {len(self.all)} heads at 1, {len(upper)} at the upper mode"
        if upper:
            said += f" (mean {fmean(each.saturated_positions for each in upper):.3f})"
        most = max(each.saturated_positions for each in self.all)
        illegal = fmean((e.future + e.pad) / e.saturated_positions for e in self.all)
        return f"{said}, at most {most:.3f}; {illegal:.0%} of attended positions are not legal"

    def keep(self, stage: Stage) -> None:
        for each in self.all:
            labels = {"model": self.name, "layer": each.layer, "head": str(each.head)}
            for name in (*_NUMBERS, "spread", "whole_future", "single"):
                value = getattr(each, name)
                if value is not None:
                    stage.record(f"heads.{name}", value, step=0, **labels)


def _size(model: TrainedModel, sentences: int) -> str:
    chosen = model.chosen
    return (
        f"{chosen.layers} layers of {chosen.H} heads, n {chosen.n}, {model.steps:,} steps; "
        f"{sentences} development sentences"
    )


def _why(as_written: Sequence[_Found], as_coded: Sequence[_Found]) -> str:
    T = as_coded[0].model.chosen.T
    future = fmean(each.whole_future or 0.0 for found in as_coded for each in found.all)
    said = (
        "The upper mode is no mean over the past. The original code multiplies future scores by 0: "
        "a row whose legal scores are all below 0 attends evenly to its future (here "
        f"{future:.0%} of rows), (T − 1)/2 + 1/T = {upper_mode(T):.3f} positions on average at "
        f"T = {T}, where a mean over the past has {(T + 1) / 2:.0f}."
    )
    if any(each.upper for each in as_coded) and not any(each.upper for each in as_written):
        said += " As coded gives the published modes, as written does not."
    if not any(each.mean_heads for each in as_written):
        said += (
            " Behind −∞ a mean needs exact ties, which trained weights do not have: mean-like "
            "heads are to be found at c = 1."
        )
    return said


def _histogram(found: Sequence[_Found]) -> Section:
    T = found[0].model.chosen.T
    rows = [
        {"positions": look.saturated_positions, "model": each.name}
        for each in found
        for look in each.all
    ]
    return Section(
        heading="Positions attended, Fig. 3",
        text="One value a head, mean over its rows; as coded those of padding count too.",
        chart=histogram(
            pl.DataFrame(rows),
            value=("positions", "positions attended, saturated (c = 1024)"),
            count="heads",
            title="What saturated heads attend to",
            subtitle=f"a head with all of its future: {upper_mode(T):.3f} positions of {T}",
            colour=("model", "model"),
        ),
        alternative="Histogram of positions attended by the heads of every model",
    )


def _at_one(found: Sequence[_Found]) -> Section:
    rows = [
        {"model": each.name, "head": f"{look.layer}.{look.head}", "share": look.spread, "se": None}
        for each in found
        for look in each.all
    ]
    return Section(
        heading="As written, where mean-like heads are: at c = 1",
        text="e^entropy of a row over its legal positions, mean over rows: 1 is an exact mean.",
        chart=estimates(
            pl.DataFrame(rows, schema_overrides={"se": pl.Float64, "share": pl.Float64}),
            x=("head", "layer.head"),
            y=("share", "effective / legal positions"),
            error="se",
            colour=("model", "model"),
            title="How evenly heads attend at c = 1",
        ),
        alternative="Effective over legal positions of every head at c = 1",
    )


def _split(found: Sequence[_Found]) -> Section:
    rows = [
        (
            each.name,
            *(f"{fmean(getattr(look, name) for look in each.all):.3f}" for name in _NUMBERS),
            ", ".join(
                f"{n} {kind}" for kind, n in sorted(Counter(e.kind for e in each.all).items())
            ),
        )
        for each in found
    ]
    return Section(
        heading="What is attended",
        text="Means over heads; entropy (nats) and effective positions at c = 1, the rest at 1024.",
        columns=("model", "positions", *_NUMBERS[1:4], "entropy", "effective", "kinds of heads"),
        rows=rows,
    )


def _table(found: Sequence[_Found]) -> Section:
    return Section(
        heading="Every head",
        columns=("model", "layer", "head", "kind", *(n.replace("_", " ") for n in _NUMBERS)),
        rows=[
            (
                each.name,
                look.layer,
                str(look.head),
                look.kind,
                *(f"{getattr(look, name):.3f}" for name in _NUMBERS),
            )
            for each in found
            for look in each.all
        ],
    )
