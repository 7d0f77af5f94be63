"""vit-, bart-strategies, r2c2-early, transfer: the paper's setting, and their verdicts."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from orderone.core.errors import ConfigError, DataError, MissingPackageError, ModelError
from orderone.core.run import RunFolder
from orderone.experiments import denoising_runs, dry_run, transfer, vision_runs
from orderone.experiments.demands import Pictures, Spans
from orderone.experiments.reproduction import Stage, experiment, reproduce
from orderone.experiments.reproductions import bart_strategies as bart
from orderone.experiments.reproductions import r2c2_early as r2c2
from orderone.experiments.reproductions import transfer as ours
from orderone.experiments.reproductions import vit_strategies as vit
from orderone.experiments.run_config import RunConfig, model_source
from orderone.experiments.search import SearchConfig, Searched, search_all_runs
from orderone.experiments.side_by_side import Course
from orderone.models.build import build
from orderone.models.presets import preset
from orderone.scaling.plan import Plan, plan
from orderone.training.config import checked

N_PATCH = 3 * 16**2


def stage(folder: Path, scale: str, data: Path | None = None) -> Stage:
    run = RunFolder.create(folder / "run", command="reproduce", config={}, seed=0)
    return Stage(
        scale=scale,  # pyright: ignore[reportArgumentType]  # one of three
        seed=0,
        run=run,
        records=run.writer(),
        progress=quiet,
        data=data,
    )


def quiet(done: int, total: int) -> None:
    """No bar."""


def planned(settings: dict[str, Any], config: Any) -> Plan:
    """The plan of a run's settings, on the meta device."""
    asked = checked(RunConfig, settings).plan
    return plan(
        build(config, device="meta"),
        asked.strategy,
        constants=asked.constants,
        multiplier_in_fans=asked.multiplier_in_fans,
    )


def of_role(made: Plan, role: str) -> Any:
    return next(row for row in made.rows if row.role == role)


# [DYZ23] §II.1's table, as typed from the paper: patch, positions, Q…X, head, and the head's std.
VISION = {
    "standard": (1, 1, 1, 1, 768**-0.5),
    "neural-tangent": (768**-0.5 / N_PATCH, 768**-0.5, 768**-1.5, 1000**-0.5 / 768, 768**-0.5),
    "hybrid": (768**-0.25 / N_PATCH, 768**-0.25, 768**-1.25, 1000**-0.5 / 768, 768**-0.75),
    "maximal-update": (1 / N_PATCH, 1, 1 / 768, 1000**-0.5 / 768, 1 / 768),
}


@pytest.mark.parametrize("strategy", VISION)
def test_the_paper_s_vision_run_has_its_published_factors(strategy: str, tmp_path: Path) -> None:
    here = stage(tmp_path, "paper", tmp_path)
    settings = vision_runs.vision_run(here, vision_runs.PAPER, strategy=strategy)
    config = checked(RunConfig, settings)
    demands = Pictures(channels=3, size=224, classes=1000)
    model = model_source(config.model, demands).config  # pyright: ignore[reportAttributeAccessIssue]
    made = planned(settings, model)
    assert made.parameters == 86_444_008
    patch, position, inner, head, std = VISION[strategy]
    assert of_role(made, "patch").lr_factor == pytest.approx(patch)
    assert of_role(made, "position").lr_factor == pytest.approx(position)
    for role in "QKVUWX":
        assert of_role(made, role).lr_factor == pytest.approx(inner), role
    assert of_role(made, "head").lr_factor == pytest.approx(head)
    assert of_role(made, "head").init_std == pytest.approx(std)
    assert of_role(made, "X").init_std == pytest.approx(math.sqrt(1.6 / (4 * 768)))
    assert (config.steps, config.batch_size, config.schedule.warmup) == (93_600, 4096, 6240)


def test_the_published_optima_lie_where_the_factors_say() -> None:
    """(20, 4e-5), … are (1e-3, 0.8) under n^(3/2), n^(5/4) and n, to a doubling."""
    found = {name: searched(lr, decay) for name, (lr, decay) in vision_runs.STARTS.items()}
    moved = {name: vit._moved(name, found, 768, {}, {}) for name in found}
    assert moved == dict.fromkeys(moved, True)
    lr, decay = vision_runs.mapped_optimum("neural-tangent", found, 768)
    assert (lr, decay) == (pytest.approx(21.28, rel=1e-3), pytest.approx(3.76e-5, rel=1e-3))
    ended = {**found, "standard": replace(found["standard"], verdict="budget")}
    assert vit._moved("hybrid", ended, 768, {}, {}) is None


@pytest.mark.parametrize("place", [(0.9, 2e-4), (4.0, 9e-4)])  # 2.2 doublings off
@pytest.mark.parametrize(
    ("mapped", "answer"),
    [((1.2, 1.21), False), ((1.005, 1.006), None), ((0.5, 0.51), None), ((1.0, math.inf), False)],
)
def test_an_optimum_elsewhere_must_be_better_there(
    place: tuple[float, float], mapped: tuple[float, float], answer: bool | None
) -> None:
    found = {name: searched(lr, decay) for name, (lr, decay) in vision_runs.STARTS.items()}
    found["hybrid"] = searched(*place)
    own = {"hybrid": [course(1.0), course(1.01)]}
    there = {"hybrid": [course(each) for each in mapped]}
    assert vit._moved("hybrid", found, 768, own, there) is answer


def searched(lr: float, decay: float) -> Searched:
    return Searched(
        verdict="optimum",
        lr=lr,
        weight_decay=decay,
        best=(0, 0),
        losses={(0, 0): 1.0},
        seeds=(1.0,),
        failures={},
    )


def course(value: float, *, shifts: int = 0) -> Course:
    """That ended at a loss, or an accuracy, of ``value``."""
    return Course(
        loss=value,
        why="" if math.isfinite(value) else "nan",
        losses=((0, 5.0), (5, value)),
        accuracies=((5, value),),
        spikes=0,
        shifts=shifts,
    )


@pytest.mark.parametrize(
    ("others", "answer"),
    [((0.901, 0.902), True), ((0.85, 0.851), False), ((0.87, 0.93), None)],
)
def test_accuracies_are_alike_within_a_point(
    others: tuple[float, float], answer: bool | None
) -> None:
    found = {"a": [course(0.9), course(0.901)], "b": [course(each) for each in others]}
    assert vit._alike(found)[0] is answer


@pytest.mark.parametrize(
    ("name", "n", "lr", "published"),
    [("bart-large", 1024, 1e-3, (32.768, 3e-7)), ("r2c2", 2048, 7e-4, (64.88, 1.08e-7))],
)
def test_the_map_gives_the_published_rates(
    name: str, n: int, lr: float, published: tuple[float, float], tmp_path: Path
) -> None:
    for folder in ("text", "gpt2"):
        (tmp_path / folder).mkdir()
    here = stage(tmp_path, "paper", tmp_path)
    size = denoising_runs.published_size(name, steps=15_000, micro_batch=16)
    runs = {
        strategy: denoising_runs.denoising_run(here, size, strategy=strategy, lr=lr, seed=0)
        for strategy in ("standard", "neural-tangent")
    }
    config = checked(RunConfig, runs["neural-tangent"])
    assert config.optimizer.lr == pytest.approx(published[0], rel=2e-3)
    assert config.optimizer.weight_decay == pytest.approx(published[1], rel=0.05)
    assert (config.batch_size, config.clip, config.data.T) == (512, 0.1, 514)
    assert (config.schedule.length, config.schedule.warmup) == (200_000, 5_000)
    demands = Spans(vocabulary=50_261, T=514, pad=50_257)
    model = model_source(config.model, demands).config  # pyright: ignore[reportAttributeAccessIssue]
    assert (model.dropout, model.attention_dropout) == (0.1, 0.1)
    standard, tangent = planned(runs["standard"], model), planned(runs["neural-tangent"], model)
    assert {row.lr_factor for row in standard.rows} == {1.0}
    assert {row.init_std for row in standard.rows} == {0.02}
    assert standard.output_multiplier == 1
    assert tangent.output_multiplier == pytest.approx(n**-0.5)
    assert of_role(tangent, "word").init_std == 1
    for role, factor in {"word": n**-0.5, "position": n**-0.5, "W": n**-1.5, "X": n**-1.5}.items():
        assert of_role(tangent, role).lr_factor == pytest.approx(factor)


def test_a_small_model_keeps_the_paper_s_constants(tmp_path: Path) -> None:
    """C_Q = 1024 · 0.02² at n 64, twice that at n 128; logits as large as at n 1024."""
    here = stage(tmp_path, "laptop")
    for size, C_Q in ((r2c2.LAPTOP.smaller, 0.4096), (r2c2.LAPTOP.larger, 0.8192)):
        settings = denoising_runs.denoising_run(here, size, strategy="standard", lr=1e-3, seed=0)
        demands = Spans(vocabulary=1024, T=64, pad=1020)
        model = model_source(settings["model"], demands).config  # pyright: ignore[reportAttributeAccessIssue]
        made = planned(settings, model)
        assert of_role(made, "Q").init_std ** 2 * size.n == pytest.approx(C_Q)
        stds = {round(of_role(made, row.role).init_std, 9) for row in made.rows}
        assert len(stds) == 1
    small = r2c2.LAPTOP.smaller
    assert stds.pop() * small.n**0.5 == pytest.approx(0.02 * 1024**0.5)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit-strategies", 86_444_008),
        ("bart-strategies", 404_845_568),
        ("r2c2-early", 2_688_739_328),
    ],
)
def test_dry_runs_count_the_published_parameters(name: str, parameters: int) -> None:
    plan_of = experiment(name).paper()
    assert plan_of.parameters == parameters
    assert plan_of.memory_bytes == 16 * parameters
    assert plan_of.flops >= 6.0 * parameters * 15_000 * 512 * 514


def test_another_count_than_the_published_is_refused() -> None:
    with pytest.raises(ModelError, match="86,444,008 parameters"):
        dry_run.trainings(
            preset("vit-b16"), count=1, steps=1, tokens_per_step=1, published=86_444_009
        )


def tried(shift: float, *, wall: int = 9, offset: float = 0.0) -> bart.Tried:
    """Bowls in log₂ lr whose least is at 0.3, and at 0.3 + shift; beyond ``wall`` they diverge."""
    return {
        (name, power): [
            course(3 + (power - 0.3 - 0.05 * seed - moved) ** 2 / 10 + up)
            if power < wall
            else course(math.inf)
            for seed in range(3)
        ]
        for name, moved, up in (("standard", 0.0, 0.0), ("neural-tangent", shift, offset))
        for power in bart.LAPTOP.powers
    }


@pytest.mark.parametrize(("shift", "holds"), [(0.0, True), (0.8, True), (1.5, False)])
def test_the_shift_under_the_map_is_recovered(shift: float, holds: bool) -> None:
    found = bart._shift(tried(shift), bart.LAPTOP)
    assert found is not None
    assert found[0] == pytest.approx(shift)
    assert bart._within(found) is holds


def test_an_optimum_at_the_edge_cannot_be_told() -> None:
    assert bart._shift(tried(9.0), bart.LAPTOP) is None
    assert bart._within(None) is None


def test_the_gap_at_the_optima_is_relative() -> None:
    found = tried(1.0, wall=2, offset=0.3)
    best = {name: bart._best(found, name) for name in ("standard", "neural-tangent")}
    assert best == {"standard": 0, "neural-tangent": 1}
    gap, error = bart._gap(found, best)
    assert error is not None
    assert gap == pytest.approx(0.1, abs=1e-3)
    assert "6 of 21 trainings standard and 6 of 21" in bart._broken(found)


def test_a_loss_that_left_its_level_for_good_diverged() -> None:
    found = tried(0.0)
    found["standard", 3][0] = course(9.0, shifts=1)
    assert "1 of 21 trainings standard and 0 of 21" in bart._broken(found)
    assert "1 shifted for good" in bart._cell(found["standard", 3])


def losses(*four: float) -> r2c2.Runs:
    """Two seeds of each: smaller standard, tangent, larger standard, tangent."""
    keys = [(size, name) for size in ("n 1", "n 2") for name in r2c2.STRATEGIES]
    return {
        key: [course(loss), course(loss * 1.0001)] for key, loss in zip(keys, four, strict=True)
    }


@pytest.mark.parametrize(
    ("four", "answer"),
    [
        ((1.203, 1.201, 1.163, 1.135), True),  # published
        ((1.163, 1.135, 1.203, 1.201), False),
        ((1.0, 1.0, math.inf, 1.0), None),
    ],
)
def test_the_larger_s_gain_is_the_larger(
    four: tuple[float, float, float, float], answer: bool | None
) -> None:
    runs = losses(*four)
    difference = r2c2.apart(r2c2._advantages(runs, "n 2"), r2c2._advantages(runs, "n 1"))
    assert r2c2._above(difference) is answer
    if answer:
        assert difference[0] == pytest.approx(math.log(1.163 / 1.135) - math.log(1.203 / 1.201))


@pytest.mark.parametrize(
    ("slope", "noise", "strategy", "answer"),
    [
        (0.0, 0.1, "neural-tangent", True),
        (-1.0, 0.1, "neural-tangent", False),
        (0.4, 0.5, "neural-tangent", None),
        (-1.0, 0.1, "standard", True),
        (1.0, 0.1, "standard", False),
        (0.0, 0.1, "standard", None),
        (-9.0, 0.1, "standard", None),  # beyond the rates tried
    ],
)
def test_slopes_are_judged_by_their_intervals(
    slope: float, noise: float, strategy: str, answer: bool | None
) -> None:
    rows = [
        {
            "width": width,
            "lr": 2.0**power,
            "seed": seed,
            "loss": (power - slope * math.log2(width / 64) - noise * (seed - 1)) ** 2,
        }
        for width in (32, 64, 128)
        for power in range(-4, 5)
        for seed in range(3)
    ]
    found = transfer.summary(pl.DataFrame(rows), strategy)
    assert ours._as_expected(strategy, found) is answer


@pytest.mark.parametrize("name", ["bart-strategies", "r2c2-early", "transfer", "vit-strategies"])
def test_each_runs_through_and_judges_nothing_so_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = vision_runs.Size(
        n=16, encoders=1, steps=2, batch=16, lr=1e-2, decay=0.1, trials=1, seeds=2
    )
    words = replace(bart.SMOKE.size, steps=5, warmup=1, batch=2, T=16, text=30_000)
    monkeypatch.setattr(vit, "SMOKE", vision)
    monkeypatch.setattr(bart, "SMOKE", replace(bart.SMOKE, size=words, powers=range(2)))
    early = replace(words, length=20)
    pair = replace(r2c2.SMOKE, smaller=early, larger=replace(early, n=32, std_width=16))
    monkeypatch.setattr(r2c2, "SMOKE", pair)
    monkeypatch.setattr(ours, "SMOKE", replace(ours.SMOKE, steps=2, batch=2, seeds=2))
    told: list[tuple[int, int]] = []
    verdict = reproduce(
        name,
        scale="smoke",
        to=tmp_path / "run",
        progress=lambda done, total: told.append((done, total)),
    )
    assert verdict.held is None
    assert "no test of the claim" in verdict.why
    assert verdict.measured
    done, total = told[-1]
    assert done == total
    assert all(before <= after for (before, _), (after, _) in pairwise(told))
    assert (tmp_path / "run" / "picture.svg").read_text().startswith("<svg")
    assert len(RunFolder.open(tmp_path / "run").records())


@pytest.mark.parametrize("name", ["bart-strategies", "r2c2-early", "vit-strategies"])
def test_the_paper_s_scale_asks_for_its_data(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data"):
        reproduce(name, scale="paper", to=tmp_path / "run", progress=quiet)


def test_search_refuses_nothing_to_search(tmp_path: Path) -> None:
    settings = vision_runs.vision_run(stage(tmp_path, "smoke"), vit.SMOKE, strategy="standard")
    settings["optimizer"]["weight_decay"] = 0.0
    with pytest.raises(ConfigError, match="weight_decay = 0"):
        search_all_runs({"a": settings}, SearchConfig(), tmp_path / "searches")


@pytest.mark.parametrize("package", ["sklearn.datasets", "kornia"])
def test_a_package_that_is_missing_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as what was refused to a trial: ``--all`` goes on without it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"sklearn|scikit-learn|kornia"):
        reproduce("vit-strategies", scale="smoke", to=tmp_path / "run", progress=quiet)
