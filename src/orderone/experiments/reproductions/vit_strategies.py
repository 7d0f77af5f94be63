"""Four ways to scale initialisation and learning rates reach about the same accuracy.

Source   [DYZ23] §II.1, Figs. 1, 2: ViT-B/16 on ImageNet-1k
Expect   at the optima of four searches in (lr, wd), mean accuracies within 1 percentage point; the
         optima apart by n^(3/2), n^(5/4) and n in lr, and by the inverse in wd, within a doubling
Cost     smoke 20 s on one core; laptop 15 min on two; paper 5 months on one large GPU
Differs  laptop: n 64, 2 encoders, 8×8 digits of scikit-learn in patches of 2×2, 800 steps of 64,
         the paper's augmentation, five seeds. Searched by the loss on 180 images, where accuracy
         has steps of 0.6 points, at the last step; the seeds are scored on 360 others. The paper
         takes the best accuracy along each training, on the images that it searched by
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from orderone.core.record import Record
from orderone.experiments.dry_run import DryRun, trainings
from orderone.experiments.lesson import lesson_of
from orderone.experiments.reproduction import Outcome, Stage
from orderone.experiments.run_config import RunConfig
from orderone.experiments.search import SearchConfig, Searched, search_all_runs
from orderone.experiments.side_by_side import (
    Course,
    all_of,
    apart,
    at_most,
    judged,
    keep,
    reason,
    trained,
)
from orderone.experiments.trial_runs import changed, mean_and_error
from orderone.experiments.vision_runs import (
    PAPER,
    POWERS,
    STARTS,
    Size,
    away,
    mapped_optimum,
    shift,
    vision_run,
)
from orderone.models.presets import preset
from orderone.report.charts import Picture, estimates, lines
from orderone.report.page import Section
from orderone.training.config import checked
from orderone.training.distributed import Ranks

PUBLISHED = (
    "80.8% standard, 80.8% neural tangent, 80.9% hybrid, 80.6% maximal update, at (lr, wd) = "
    "(0.001, 0.8), (20, 4e-5), (4, 2e-4), (0.4, 0.001)"
)
PARAMETERS = 86_444_008
MARGIN = 0.01
"""Accuracies nearer to one another are about the same."""
DOUBLING = 1.0
Seeds = dict[str, list[Course]]
"""Trainings of every seed by strategy."""
SMOKE = Size(
    n=16,
    encoders=1,
    steps=20,
    batch=64,
    lr=1.6e-2,
    decay=0.1,
    trials=7,
    seeds=2,
)
LAPTOP = Size(
    n=64,
    encoders=2,
    steps=800,
    batch=64,
    lr=8e-3,
    decay=0.1,
    trials=32,
    seeds=5,
)


def reproduce(stage: Stage) -> Outcome:
    """Search each strategy's (lr, wd), then train from several seeds at the optima."""
    size = stage.pick(smoke=SMOKE, laptop=LAPTOP, paper=PAPER)
    starts = {name: vision_run(stage, size, strategy=name) for name in STARTS}
    # What is not installed or not there is told by what it is, before any process is begun.
    next(lesson_of(checked(RunConfig, starts["standard"]), Ranks()).training)
    total = len(starts) * (size.trials + size.seeds)
    found = search_all_runs(
        starts,
        SearchConfig(trials=size.trials, seeds=1),
        stage.run.path / "searches",
        processes=stage.processes,
        at_once=7,
        progress=lambda done, _: stage.progress(done, total),
    )
    courses, mapped = _from_seeds(stage, size, starts, found)
    _keep(stage, found, courses, mapped)
    alike, gap = _alike(courses)
    moved = {
        name: _moved(name, found, size.n, courses, mapped) for name in POWERS if name != "standard"
    }
    return Outcome(
        measured=_measured(size, found, courses),
        held=judged(stage, all_of([alike, *moved.values()])),
        why=reason(stage, _why(alike, gap, moved, found, courses)),
        sections=_sections(size, found, courses),
    )


def paper() -> DryRun:
    """Four searches that begin at their optimum: 7 points and 2 more seeds each."""
    config = preset("vit-b16")
    assert config.kind == "vision"
    return trainings(
        config,
        count=len(STARTS) * (7 + 2),
        steps=PAPER.steps,
        tokens_per_step=PAPER.batch * config.T,
        published=PARAMETERS,
        note="--data names ImageNet-1k's folder of train/CLASS and val/CLASS; at the least 9 "
        "trainings a strategy",
    )


def _from_seeds(
    stage: Stage, size: Size, starts: dict[str, dict[str, Any]], found: dict[str, Searched]
) -> tuple[Seeds, Seeds]:
    """Trainings at the optima, and at the mapped standard optimum where that is another.

    The small ones are scored on images that no search saw.
    """
    places = {(name, False): (each.lr, each.weight_decay) for name, each in found.items()}
    for name in found:
        if away(name, found, size.n) > DOUBLING:
            places[name, True] = mapped_optimum(name, found, size.n)
    keys: dict[str, tuple[str, bool]] = {}
    runs: dict[str, dict[str, Any]] = {}
    for (name, mapped), (lr, decay) in places.items():
        for seed in range(stage.seed, stage.seed + size.seeds):
            changes = {"seed": seed, "optimizer.lr": lr, "optimizer.weight_decay": decay}
            unseen = {} if stage.scale == "paper" else {"images.held_out": "test"}
            folder = f"{name}{'_mapped' if mapped else ''}_seed={seed}"
            keys[folder] = name, mapped
            runs[folder] = changed(starts[name], {**changes, **unseen})
    searched = len(starts) * size.trials
    ended = trained(stage, runs, lambda n, of: stage.progress(searched + n, searched + of))
    own, other = Seeds(), Seeds()
    for folder, course in ended.items():
        name, mapped = keys[folder]
        (other if mapped else own).setdefault(name, []).append(course)
    return own, other


def _keep(stage: Stage, found: dict[str, Searched], courses: Seeds, mapped: Seeds) -> None:
    for strategy, each in found.items():
        for point, loss in each.losses.items():
            lr, decay = each.at(point)
            labels = {"strategy": strategy, "lr": f"{lr:.6g}", "wd": f"{decay:.6g}"}
            stage.records.write(Record(0, "searched loss", loss, labels))
        for seed, course in enumerate(courses[strategy]):
            keep(stage, course, strategy=strategy, seed=str(seed), at="optimum")
        for seed, course in enumerate(mapped.get(strategy, [])):
            keep(stage, course, strategy=strategy, seed=str(seed), at="mapped standard optimum")


def _accuracies(courses: list[Course]) -> list[float]:
    return [course.accuracy for course in courses]


def _alike(courses: Seeds) -> tuple[bool | None, tuple[float, float | None]]:
    """Whether the best and the worst strategy are within the margin; their gap and its error."""
    by_mean = sorted(courses, key=lambda name: mean_and_error(_accuracies(courses[name]))[0])
    gap = apart(_accuracies(courses[by_mean[-1]]), _accuracies(courses[by_mean[0]]))
    return at_most(*gap, MARGIN), gap


def _moved(name: str, found: dict[str, Searched], n: int, own: Seeds, mapped: Seeds) -> bool | None:
    """Whether the optimum lies where the factors take the standard one, within a doubling.

    Not where it is elsewhere but no better: an optimum so flat has no place.
    """
    if not all(found[each].verdict in ("optimum", "tie") for each in (name, "standard")):
        return None
    if away(name, found, n) <= DOUBLING:
        return True
    if any(course.failed for course in mapped[name]):
        return False
    here, there = ([course.loss for course in each[name]] for each in (own, mapped))
    gain, error = apart(there, here)
    return False if error is not None and gain > 2 * error else None


def _measured(size: Size, found: dict[str, Searched], courses: Seeds) -> str:
    told: list[str] = []
    for strategy, each in found.items():
        mean, error = mean_and_error(_accuracies(courses[strategy]))
        spread = "" if error is None else f" ± {100 * error:.1f}"
        told.append(
            f"{100 * mean:.1f}{spread}% {strategy} at ({each.lr:.3g}, {each.weight_decay:.2g})"
        )
    return (
        f"n {size.n}, {size.steps:,} steps, {size.seeds} seeds: {', '.join(told)}; optima "
        f"lie from the standard one {_shifts(found, size.n)}"
    )


def _shifts(found: dict[str, Searched], n: int) -> str:
    told: list[str] = []
    for name, power in POWERS.items():
        if name != "standard":
            lr, decay = shift(name, found)
            expected = power * math.log2(n)
            told.append(f"{lr:+.1f} and {decay:+.1f} (expected ±{expected:.1f}) {name}")
    return f"by doublings of lr and wd: {', '.join(told)}"


def _why(
    alike: bool | None,
    gap: tuple[float, float | None],
    moved: dict[str, bool | None],
    found: dict[str, Searched],
    courses: Seeds,
) -> str:
    reach = "" if gap[1] is None else f" ± {100 * gap[1]:.1f}"
    said = [f"Best and worst strategy are {100 * gap[0]:.1f}{reach} points apart."]
    if alike is None:
        said.append("The seeds' spread is too large to tell whether that is within 1 point.")
    ended = [name for name, each in found.items() if each.verdict not in ("optimum", "tie")]
    if ended:
        said.append(f"The search ended before six neighbours were tried: {', '.join(ended)}.")
    off = [name for name, answer in moved.items() if answer is False]
    if off:
        said.append(f"Away from the mapped standard optimum, and better there: {', '.join(off)}.")
    flat = [name for name, answer in moved.items() if answer is None and name not in ended]
    if flat and "standard" not in ended:
        said.append(f"Away from it, and no better beyond the seeds' spread: {', '.join(flat)}.")
    spikes = {name: sum(course.spikes for course in each) for name, each in courses.items()}
    counted = ", ".join(f"{count} {name}" for name, count in spikes.items())
    said.append(f"Spikes of the training loss at the optima, over all seeds: {counted}.")
    return " ".join(said)


def _sections(size: Size, found: dict[str, Searched], courses: Seeds) -> list[Section]:
    setting = f"n {size.n}, encoders {size.encoders}, batch {size.batch}"
    searches = [_searched(name, each) for name, each in found.items()]
    return [
        Section(
            heading="Accuracy while training, Fig. 2",
            text="At each strategy's optimum, the mean over seeds.",
            chart=_curves(courses, setting),
            alternative="Accuracy over steps, a line each strategy",
            columns=("strategy", "lr", "wd", "accuracy of each seed", "spikes"),
            rows=[_row(name, each, courses[name]) for name, each in found.items()],
        ),
        Section(
            heading="Around each optimum, Fig. 1",
            text="Loss at the six neighbours in (lr, wd), as multiples of the optimum.",
            chart=_neighbourhoods(found, setting),
            alternative="Validation loss at seven points around each strategy's optimum",
        ),
        *searches,
    ]


def _row(name: str, each: Searched, courses: list[Course]) -> tuple[str, ...]:
    accuracies = ", ".join(f"{100 * accuracy:.1f}%" for accuracy in _accuracies(courses))
    spikes = sum(course.spikes for course in courses)
    return name, f"{each.lr:.4g}", f"{each.weight_decay:.3g}", accuracies, str(spikes)


def _searched(name: str, each: Searched) -> Section:
    columns, rows = each.table()
    return Section(
        heading=f"Search: {name}",
        text=f"{len(each.losses)} points, {each.verdict}; validation loss in nats.",
        columns=columns,
        rows=rows,
    )


def _curves(courses: Seeds, setting: str) -> Picture:
    rows = [
        (name, step, 100 * accuracy)
        for name, each in courses.items()
        for course in each
        for step, accuracy in course.accuracies
    ]
    schema = {"strategy": pl.String, "step": pl.Int64, "accuracy": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    means = frame.group_by("strategy", "step", maintain_order=True).mean()
    return lines(
        means,
        x=("step", "step"),
        y=("accuracy", "accuracy on held-out images (%)"),
        colour=("strategy", "strategy"),
        title="Four strategies, each at its own optimum",
        subtitle=f"{setting}; mean over seeds",
    )


def _neighbourhoods(found: dict[str, Searched], setting: str) -> Picture:
    places = [(1, 0), (0, 1), (1, -1), (0, 0), (-1, 1), (0, -1), (-1, 0)]
    rows = [
        (f"{2.0**i:g}, {2.0**j:g}", name, each.losses[point], None)
        for i, j in places
        for name, each in found.items()
        if math.isfinite(each.losses.get(point := (each.best[0] + i, each.best[1] + j), math.inf))
    ]
    schema = {"place": pl.String, "strategy": pl.String, "loss": pl.Float64, "error": pl.Float64}
    return estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("place", "(lr, wd) as multiples of the optimum"),
        y=("loss", "validation loss (nats)"),
        error="error",
        colour=("strategy", "strategy"),
        title="Six neighbours of each optimum",
        subtitle=f"{setting}; one seed",
    )
