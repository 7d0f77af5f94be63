"""Run folders with known contents, written as the commands write them."""

from __future__ import annotations

import math
from pathlib import Path

from orderone.core.record import Record
from orderone.core.run import RunFolder

HOSTILE = "</script><img src=x onerror=\"window.hit='img'\"><svg onload=window.hit=1>"
NAMES = (
    HOSTILE,
    "\"'`\\",
    "a.b[0]['c']",
    "*",
    "^.*$",
    "__proto__",
    "constructor",
    "{{ 7*7 }}${7*7}",
    "<!--",
    "javascript:window.hit=2",
)
"""Names that break out of an element, an attribute, a script, a pattern, a path or a template."""


def training(path: Path, *, steps: int = 20, lr: float = 0.1, ends: bool = True) -> Path:
    """A run of ``orderone train`` whose loss falls from 3 by 1/step."""
    config = {"steps": steps, "optimizer": {"lr": lr}, "model": {"n": 64}, "resume": None}
    run = RunFolder.create(path, command="train", config=config, seed=1)
    with run.writer() as records:
        for step in range(1, steps + 1):
            records.write(Record(step, "loss", 2 + 1 / step, {"split": "train"}))
            if step % 5 == 0:
                records.write(Record(step, "loss", 2.5 + 1 / step, {"split": "validation"}))
            records.write(Record(step, "gradient_norm_before_clipping", math.exp(-step / 10)))
        records.write(Record(steps, "spike", 12.0, {"which": "loss", "began": str(steps - 2)}))
    if ends:
        run.finish("done", {"steps": steps, "validation": 2.5 + 1 / steps, "damaged": []})
    return path


def verdict(path: Path, *, held: bool | None) -> Path:
    """A run of ``orderone reproduce``."""
    run = RunFolder.create(
        path, command="reproduce", config={"name": "counting", "scale": "smoke"}, seed=0
    )
    with run.writer() as records:
        for layer, value in (("encoder.0", 0.5), ("encoder.1", 0.7)):
            for network in ("model", "random"):
                records.write(Record(0, "cosine", value, {"layer": layer, "network": network}))
    told = {"claim": "It counts", "published": "100 %", "measured": "99 %", "scale": "smoke"}
    run.finish("done", {**told, "held": held})
    return path


def hostile(path: Path) -> Path:
    """A run whose every string would run or break something, if anything let it."""
    config = {name: {name: [name]} for name in NAMES}
    run = RunFolder.create(path / HOSTILE.replace("/", "∕"), command=HOSTILE, config=config, seed=1)
    with run.writer() as records:
        for step in range(3):
            for name in NAMES:
                records.write(Record(step, "loss", 1.0 + step, {"split": name}))
            for name in NAMES[:3]:
                records.write(Record(step, name, float(step), {HOSTILE: name, "group": name}))
                records.write(Record(0, f"place {name}", float(step), {name: f"{name} {step}"}))
                grid = {"layer": name, "head": str(step)}
                records.write(Record(0, f"map {name}", float(step), grid))
        records.write(Record(2, "spike", 3.0, {"which": HOSTILE, "began": HOSTILE}))
    summary = {name: [{name: name}, {name: HOSTILE}] for name in NAMES}
    run.finish(HOSTILE, {**summary, "claim": HOSTILE, "held": False, "measured": HOSTILE})
    return run.path
