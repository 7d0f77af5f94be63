"""Configurations that are impossible, mistyped or unknown: one line each, naming the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orderone.core.errors import ConfigError
from orderone.training.config import (
    OptimizerConfig,
    TrainingConfig,
    checked,
    differences,
    read_toml,
)
from orderone.training.optimizers import optimizer, optimizer_class, scaling_kind

GOOD: dict[str, Any] = {"steps": 10, "batch_size": 8}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stepz": 3}, "unknown setting 'stepz'"),
        ({"optimizer": {"lrr": 3.0}}, "unknown setting 'optimizer.lrr'.*weight_decay"),
        ({"steps": "ten"}, "steps = 'ten'"),
        ({"steps": "10"}, "steps = '10'"),
        ({"steps": 0}, "steps = 0"),
        ({"clip": -1.0}, "clip = -1.0"),
        ({"precision": "int8"}, "precision = 'int8'"),
        ({"schedule": {"kind": "cosin"}}, "schedule.kind = 'cosin'"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr = nan"),
        ({"seed": 2**63}, "seed = 9223372036854775808.*less than"),
        ({"micro_batch": 3}, "batch_size = 8 with micro_batch = 3"),
        ({"schedule": {"warmup": 11}}, "warmup = 11 with steps = 10"),
        ({"schedule": {"length": 9}}, "schedule.length = 9 with steps = 10"),
        ({"precision": "float16", "parallel": "fsdp"}, "'float16' with parallel = 'fsdp'"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        checked(TrainingConfig, {**GOOD, **changes})
    assert "\n" not in str(caught.value)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'steps'"):
        checked(TrainingConfig, {"batch_size": 8})


def test_parts_of_a_step_are_whole() -> None:
    chosen = checked(TrainingConfig, {**GOOD, "micro_batch": 2})
    assert [chosen.accumulated(world) for world in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ConfigError, match="on 3 processes"):
        chosen.accumulated(3)


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("steps = = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_toml(bad)
    bad.write_text(f"steps = {'[' * 2000}")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_toml(bad)


def test_differences_are_named_where_they_lie() -> None:
    before = {"seed": 0, "model": {"n": 64, "H": 2}, "gone": 1}
    now = {"seed": 0, "model": {"n": 128, "H": 2}, "new": 2}
    found = differences(before, now)
    assert found == ["model.n = 64, now 128", "gone = 1, now None", "new = None, now 2"]


@pytest.mark.parametrize("name", ["AdamW", "adamw", "sgd", "ADAFACTOR", "RMSprop", "Lion"])
def test_optimizers_by_name(name: str) -> None:
    if name == "Lion":
        with pytest.raises(ConfigError, match=r"optimizer\.name = 'Lion'.*Adafactor, Adagrad"):
            optimizer_class(name)
        return
    assert optimizer_class(name).__name__.lower() == name.lower()
    assert scaling_kind(name) == ("sgd" if name == "sgd" else "adamw")


def test_an_optimizer_that_a_plain_loop_cannot_drive_says_why() -> None:
    with pytest.raises(ConfigError, match="several times a step"):
        optimizer_class("lbfgs")


def test_groups_keep_their_own_rates_and_lists_become_tuples() -> None:
    groups = [{"params": [torch.ones(2)], "lr": 5.0}, {"params": [torch.ones(3)]}]
    settings = {"betas": [0.9, 0.95], "eps": 1e-6}
    made = optimizer(groups, OptimizerConfig(lr=0.5, weight_decay=0.1, settings=settings))
    assert [group["lr"] for group in made.param_groups] == [5.0, 0.5]
    assert [group["betas"] for group in made.param_groups] == [(0.9, 0.95)] * 2
    assert [group["weight_decay"] for group in made.param_groups] == [0.1, 0.1]


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.9},
        {"betas": [0.9, 2.0]},
        {"betas": [0.9]},
        {"betas": "ab"},
        {"eps": "small"},
        {"eps": True},
        {"amsgrad": 1},
        {"foreach": "yes"},
        {"capturable": True},
        {"differentiable": True},
    ],
)
def test_settings_that_an_optimizer_refuses(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        optimizer([{"params": [torch.ones(2)]}], OptimizerConfig(settings=settings))
    assert "\n" not in str(caught.value)
