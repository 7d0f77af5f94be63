"""A published figure or table as an experiment: its claim, what was published, what we measure.

An experiment is a module of ``experiments.reproductions`` with

- a docstring of a claim and the paragraphs ``Source``, ``Expect``, ``Cost`` and ``Differs``,
- ``PUBLISHED``, the number or statement to compare with,
- ``reproduce(stage) -> Outcome``, which measures at the stage's scale,
- ``paper() -> DryRun``, what the exact setting would take; builds nothing but shapes.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast, runtime_checkable

import torch

from orderone.core.errors import ConfigError
from orderone.core.record import Record, RecordWriter
from orderone.core.run import RunFolder
from orderone.experiments.dry_run import DryRun
from orderone.report.charts import svg
from orderone.report.page import Section, page

Size = TypeVar("Size")
Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")

NAMES = (
    "kernel-growth",
    "attention-gaussianity",
    "kernel-agreement",
    "tangent-agreement",
    "gradient-sizes",
    "learning-rate-factors",
    "coordinates",
    "vit-strategies",
    "bart-strategies",
    "r2c2-early",
    "transfer",
    "t5-norms",
    "small-lm",
    "saturation-pretrained",
    "saturation-small",
    "attended-positions",
    "scaling-curves",
    "alignment",
    "dynamics",
    "decay-grid",
    "homogeneity-table",
    "counting",
)
"""In the papers' order: [DYZ23] first, then [MRGSS21]."""

PICTURE = "picture.svg"
"""The first chart of an experiment, beside its page."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment found."""

    measured: str
    held: bool | None
    """Whether the claim held; None where this scale cannot tell."""
    why: str = ""
    """What in the setting explains a difference, or why this scale cannot tell."""
    as_coded: str | None = None
    """The same as the original implementation computed it, where that is something else."""
    sections: Sequence[Section] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An outcome beside what was published; its fields but ``why`` are ``reproduce --json``."""

    name: str
    claim: str
    published: str
    measured: str
    held: bool | None
    as_coded: str | None
    scale: Scale
    seconds: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where an experiment runs: its scale, its seed, its folder, its records, its progress bar."""

    scale: Scale
    seed: int
    run: RunFolder
    records: RecordWriter
    progress: Callable[[int, int], None]
    """Told (done, total)."""
    processes: int = 1
    """How many trainings may run side by side."""
    data: Path | None = None
    """Folder of the paper's own data, where it is not a package's."""

    @property
    def device(self) -> torch.device:
        """The accelerator at the paper's scale; the smaller ones are for any machine."""
        cuda = self.scale == "paper" and torch.cuda.is_available()
        return torch.device("cuda" if cuda else "cpu")

    def pick(self, *, smoke: Size, laptop: Size, paper: Size) -> Size:
        """The setting of this scale."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.scale]

    def record(self, name: str, value: float, *, step: int = 0, **labels: str) -> None:
        """Keep a number: everything that is drawn is drawn from records."""
        self.records.write(Record(step, name, value, labels))


@runtime_checkable
class Experiment(Protocol):
    """A module of ``experiments.reproductions``."""

    PUBLISHED: str
    reproduce: Callable[[Stage], Outcome]
    paper: Callable[[], DryRun]


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in NAMES:
        raise ConfigError(
            f"experiment '{name}'",
            expected=f"one of {', '.join(NAMES)}",
            do="choose one; orderone reproduce --list tells what they are",
        )
    module = importlib.import_module(f"orderone.experiments.reproductions.{name.replace('-', '_')}")
    return cast(Experiment, module)


def scale_named(name: str) -> Scale:
    """The scale of that name on a command line."""
    for scale in SCALES:
        if name == scale:
            return scale
    raise ConfigError(f"--scale {name}", expected=f"one of {', '.join(SCALES)}", do="choose one")


def claim(name: str) -> str:
    """The first line of an experiment's docstring."""
    return _document(name)[0].rstrip(".")


def particulars(name: str) -> dict[str, str]:
    """Its paragraphs: Source, Expect, Cost, Differs."""
    found: dict[str, str] = {}
    key = ""
    for line in _document(name)[1:]:
        head, _, rest = line.partition(" ")
        if head in ("Source", "Expect", "Cost", "Differs"):
            key, line = head, rest
        if key and line.strip():
            found[key] = f"{found.get(key, '')} {line.strip()}".strip()
    return found


def reproduce(
    name: str,
    *,
    scale: Scale,
    to: Path,
    seed: int = 0,
    processes: int = 1,
    data: Path | None = None,
    progress: Callable[[int, int], None],
) -> Verdict:
    """Run an experiment in a new run folder: records, verdict, picture and page."""
    chosen = experiment(name)
    run = RunFolder.create(
        to,
        command="reproduce",
        config={"name": name, "scale": scale, "processes": processes},
        seed=seed,
    )
    start = time.perf_counter()
    with run.writer() as records:
        stage = Stage(
            scale=scale,
            seed=seed,
            run=run,
            records=records,
            progress=progress,
            processes=processes,
            data=data,
        )
        outcome = chosen.reproduce(stage)
    verdict = Verdict(
        name=name,
        claim=claim(name),
        published=chosen.PUBLISHED,
        measured=outcome.measured,
        held=outcome.held,
        as_coded=outcome.as_coded,
        scale=scale,
        seconds=round(time.perf_counter() - start, 1),
        why=outcome.why,
    )
    run.finish("done", asdict(verdict))
    for section in outcome.sections:
        if section.chart is not None:
            (run.path / PICTURE).write_text(svg(section.chart), encoding="utf-8")
            break
    text = page(title=claim(name), found=_found(verdict), sections=_sections(verdict, outcome))
    (run.path / "report.html").write_text(text, encoding="utf-8")
    return verdict


def _document(name: str) -> list[str]:
    return (inspect.getdoc(experiment(name)) or "").splitlines()


def _found(verdict: Verdict) -> list[str]:
    answer = {True: "It held", False: "It did not hold", None: "This scale cannot tell"}
    sentences = [
        f"{answer[verdict.held]} ({verdict.scale} scale, {verdict.seconds:g} s).",
        f"Published: {verdict.published}.",
        f"Measured: {verdict.measured}.",
    ]
    if verdict.as_coded is not None:
        sentences.append(f"As the original code computes it: {verdict.as_coded}.")
    return [*sentences, verdict.why] if verdict.why else sentences


def _sections(verdict: Verdict, outcome: Outcome) -> list[Section]:
    again = f"orderone reproduce {verdict.name} --scale {verdict.scale}"
    facts = [*particulars(verdict.name).items(), ("Run it again", again)]
    return [*outcome.sections, Section(heading="About", columns=("", ""), rows=facts)]
