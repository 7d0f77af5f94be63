"""A watch against a dense float64 reference written here, over the ways people train."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import orderone
from orderone.core.errors import ConfigError, ModelError, RunError
from orderone.core.record import Record, read_records
from orderone.core.selection import grouped, selected

PATH = ("norm", "step_norm", "relative_step", "alignment", "one_minus_cosine")


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.mlp = nn.ModuleDict({"up": nn.Linear(n, 3 * n), "down": nn.Linear(3 * n, n)})

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp["down"](torch.relu(self.mlp["up"](self.norm(x))))


class Body(nn.Module):
    """Large and small tensors: (128, 384) goes by float32 rows, gains by float64."""

    def __init__(self, n: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(n) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write_all(self, records: Any) -> None:
        self.records += list(records)

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def at(self, step: int, name: str, by: str = "total", group: str = "total") -> float:
        found = [
            record.value
            for record in self.records
            if (record.step, record.name) == (step, name)
            and record.labels.get("by") == by
            and record.labels.get("group") == group
        ]
        assert len(found) == 1, (step, name, by, group, found)
        return found[0]


def body(seed: int = 0, **sizes: int) -> Body:
    torch.manual_seed(seed)
    return Body(**sizes)


def batch(step: int, n: int = 128) -> Tensor:
    return torch.randn(8, n, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = batch(step)
    return mse_loss(model(x), x.roll(1, -1))


def flat64(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.detach().double().flatten() for x in tensors])


def reference(before: Tensor, after: Tensor) -> dict[str, float]:
    """Every quantity of one step, from the definitions, in float64."""
    delta = after - before
    u, v = before / before.norm(), after / after.norm()
    return {
        "norm": after.norm().item(),
        "step_norm": delta.norm().item(),
        "relative_step": (delta.norm() / before.norm()).item(),
        "alignment": (torch.dot(delta, before) / (delta.norm() * before.norm())).item(),
        "one_minus_cosine": ((u - v).norm() ** 2 / 2).item(),
    }


def same(found: float, expected: float, *, rel: float = 1e-5) -> None:
    assert found == pytest.approx(expected, rel=rel, abs=1e-12)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_every_group_equals_a_dense_float64_reference(name: str, clip: float | None) -> None:
    """Three micro-batches a step; ‖g‖ is of their sum, before and after clipping."""
    model = body()
    optimizer = OPTIMIZERS[name](model.parameters())
    kept = Kept()
    parameters = selected(model)
    with orderone.watch(model, optimizer, to=kept, every=1):
        history: list[dict[str, Tensor]] = []
        gradients: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
        for step in range(3):
            optimizer.zero_grad()
            for micro in range(3):
                loss_of(model, 3 * step + micro).backward()
            raw = {k: p.grad.clone() for k, p in parameters.items() if p.grad is not None}
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            used = {k: p.grad.clone() for k, p in parameters.items() if p.grad is not None}
            history.append({k: p.detach().clone() for k, p in parameters.items()})
            gradients.append((raw, used))
            optimizer.step()
        history.append({k: p.detach().clone() for k, p in parameters.items()})
    for by in ("total", "layer", "role"):
        for group, names in grouped(parameters, by).items():
            theta = [flat64([moment[k] for k in names]) for moment in history]
            squares, steps = theta[0].norm() ** 2, theta[0].norm()
            for step in range(3):
                expected = reference(theta[step], theta[step + 1])
                for quantity in PATH:
                    # Of a step along θ, such as weight decay's, 1 − cos is a small rest.
                    sin2 = 1 - expected["alignment"] ** 2
                    rel = max(1e-5, 1e-7 / sin2) if quantity == "one_minus_cosine" else 1e-5
                    same(kept.at(step + 1, quantity, by, group), expected[quantity], rel=rel)
                for when, of in zip(("before", "after"), gradients[step], strict=True):
                    found = kept.at(step + 1, f"gradient_norm_{when}_clipping", by, group)
                    same(found, flat64([of[k] for k in names]).norm().item())
                squares, steps = squares + expected["step_norm"] ** 2, steps + expected["step_norm"]
                same(kept.at(step + 1, "norm_if_misaligned", by, group), squares.sqrt().item())
                same(kept.at(step + 1, "norm_if_aligned", by, group), steps.item())
    before = kept.at(2, "gradient_norm_before_clipping")
    after = kept.at(2, "gradient_norm_after_clipping")
    assert (after < 0.1 * before) if clip is not None else (after == before)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaled_run_is_recorded_unscaled_and_a_skipped_step_not_at_all(
    fused: bool, unscaled: bool
) -> None:
    """GradScaler leaves the second step out; a fused optimizer is called and does nothing."""
    model = body()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    kept, norms = Kept(), []
    with orderone.watch(model, optimizer, to=kept, every=1):
        for step in range(3):
            plain = copy.deepcopy(model)
            loss_of(plain, step).backward()
            norms.append(flat64([p.grad for p in plain.parameters() if p.grad is not None]).norm())
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step) * (math.inf if step == 1 else 1.0)).backward()
            if unscaled:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
    last = 3 if fused and not unscaled else max(record.step for record in kept.records)
    measured = sorted({record.step for record in kept.records if record.name == "norm"})
    assert len(measured) == 2
    assert measured == [1, last]
    for step, norm in ((1, norms[0]), (last, norms[2])):
        same(kept.at(step, "gradient_norm_before_clipping"), norm.item(), rel=1e-4)
        clipped = min(0.05, norm.item()) if unscaled else norm.item()
        same(kept.at(step, "gradient_norm_after_clipping"), clipped, rel=1e-4)


def test_a_closure_makes_its_gradients_inside_the_step() -> None:
    model = body()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept, norms = Kept(), []

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, len(norms))
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
        return loss.item()

    with orderone.watch(model, optimizer, to=kept, every=1):
        for _ in range(2):
            optimizer.step(closure)
    for step in (1, 2):
        same(kept.at(step, "gradient_norm_before_clipping"), norms[step - 1])
        same(kept.at(step, "gradient_norm_after_clipping"), 0.05, rel=1e-4)


def hooks_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> int:
    on_tensors = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    steps = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return steps + sum(on_tensors)


def test_unmeasured_steps_are_left_alone_and_closing_leaves_no_hook() -> None:
    model, kept = body(), Kept()
    optimizer = torch.optim.AdamW(model.parameters())
    with orderone.watch(model, optimizer, to=kept, every=3) as watch:
        for step in range(1, 8):
            # Gradients are listened to only on the way to a measured step.
            assert hooks_of(optimizer, model) == (2 if step % 3 else 2 + len(selected(model)))
            loss_of(model, step).backward()
            optimizer.step()
    assert {record.step for record in kept.records} == {3, 6}
    assert hooks_of(optimizer, model) == 0
    assert kept.closed
    watch.close()
    loss_of(model, 8).backward()
    optimizer.step()
    assert watch.steps == 7


def test_sums_over_some_steps_say_so_and_stand_for_all() -> None:
    """With a step of constant size the estimate from one step in three is exact."""
    model, kept = nn.Linear(4, 4, bias=False), Kept()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with orderone.watch(model, optimizer, to=kept, every=3):
        for _ in range(6):
            model.weight.grad = torch.full((4, 4), 0.25)
            optimizer.step()
    same(kept.at(6, "norm_if_aligned"), 4 + 6 * 1.0)
    same(kept.at(6, "norm_if_misaligned"), math.sqrt(16 + 6 * 1.0))
    labels = [r.labels for r in kept.records if r.name == "norm_if_aligned"]
    assert all(each["steps"] == "each of 1 in 3, for all" for each in labels)
    # Nobody saw a backward pass: nothing is said of before clipping.
    assert not [r for r in kept.records if r.name == "gradient_norm_before_clipping"]
    same(kept.at(6, "gradient_norm_after_clipping"), 1.0)


def test_a_step_and_a_watch_leave_the_weights_that_a_bare_loop_leaves() -> None:
    weights = []
    for watched in (False, True):
        model = body()
        optimizer = torch.optim.AdamW(model.parameters())
        watch = orderone.watch(model, optimizer, to=Kept(), every=1) if watched else None
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        if watch:
            watch.close()
        weights.append(flat64(list(model.parameters())))
    assert torch.equal(*weights)


def test_copies_of_optimizer_and_model_survive_and_are_not_watched() -> None:
    model, kept = body(), Kept()
    optimizer = torch.optim.AdamW(model.parameters())
    with orderone.watch(model, optimizer, to=kept, every=1) as watch:
        loss_of(model, 0).backward()
        optimizer.step()
        for again in (
            copy.deepcopy((model, optimizer)),
            pickle.loads(pickle.dumps((model, optimizer))),
        ):
            loss_of(again[0], 1).backward()
            again[1].step()
            assert hooks_of(again[1], again[0]) == 0
            assert torch.equal(
                again[1].state[next(again[0].parameters())]["step"], torch.tensor(2.0)
            )
        assert watch.steps == 1
    assert {record.step for record in kept.records} == {1}


def test_bf16_weights_are_flagged_where_steps_are_their_rounding() -> None:
    """A step of 2⁻¹² of the weights is lost in bf16's 2⁻⁸, one of 10 % is not."""
    for lr, dtype, flagged in (
        (2e-5, torch.bfloat16, True),
        (0.05, torch.bfloat16, False),
        (2e-5, torch.float32, False),
    ):
        model, kept = body().to(dtype), Kept()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        with orderone.watch(model, optimizer, to=kept, every=1):
            x = batch(0).to(dtype)
            model(x).square().mean().backward()
            optimizer.step()
        found = [
            r for r in kept.records if r.name == "step_untrusted" and r.labels["by"] == "total"
        ]
        assert bool(found) == flagged, (lr, dtype)


def test_a_nan_in_one_layer_stays_there() -> None:
    model, kept = body(), Kept()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with orderone.watch(model, optimizer, to=kept, every=1):
        loss_of(model, 0).backward()
        model.layers[0].mlp["up"].weight.grad[0, 0] = math.nan
        optimizer.step()
    assert math.isnan(kept.at(1, "norm"))
    assert math.isnan(kept.at(1, "norm", "layer", "0"))
    assert math.isfinite(kept.at(1, "norm", "layer", "1"))


def test_a_snapshot_on_the_host_gives_the_same_records() -> None:
    lines = []
    for where in ("device", "cpu"):
        model, kept = body(), Kept()
        optimizer = torch.optim.AdamW(model.parameters())
        with orderone.watch(model, optimizer, to=kept, every=1, snapshot=where):
            loss_of(model, 0).backward()
            optimizer.step()
        lines.append([record.to_line() for record in kept.records])
    assert lines[0] == lines[1]


@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled_models_and_steps_give_the_records_of_plain_ones(what: str) -> None:
    """And nothing is compiled a second time because of the watch."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model, kept = body(), Kept()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        run: Any = model
        if compiled and what == "model":
            run = torch.compile(model, backend="aot_eager")
        with orderone.watch(run, optimizer, to=kept, every=2):
            take = optimizer.step
            if compiled and what == "step":
                take = torch.compile(optimizer.step, backend="aot_eager")
            for step in range(4):
                optimizer.zero_grad()
                loss_of(run, step).backward()
                take()
        if compiled and what == "model":
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        found.append({(r.step, r.name, *r.labels.values()): r.value for r in kept.records})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        same(found[1][key], value, rel=1e-4)


# Files and logs ----------------------------------------------------------------------------------


def run_some(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def test_records_of_a_folder_and_of_a_continued_run(tmp_path: Path) -> None:
    """A run stopped after 5 of 6 steps and resumed from 4 leaves the file of one never stopped."""
    frames = []
    for stopped in (False, True):
        model, folder = body(), tmp_path / str(stopped)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = orderone.watch(model, optimizer, to=folder, every=2)
        run_some(model, optimizer, range(4))
        if stopped:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            watch.log(loss=1.0)
            run_some(model, optimizer, range(4, 6))
            watch.close()
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            watch = orderone.watch(model, optimizer, to=folder, every=2, start=4)
        else:
            watch.log(loss=1.0)
        run_some(model, optimizer, range(4, 6))
        watch.close()
        # What is summed over steps starts anew with the watch.
        frame = read_records(folder / "records.jsonl")
        frames.append(frame.filter(~pl.col("name").str.starts_with("norm_if")))
    assert frames[0].equals(frames[1])
    assert frames[0]["step"].unique().sort().to_list() == [2, 4, 6]


def test_what_is_logged_is_of_the_step_taken_and_kept_as_it_was(tmp_path: Path) -> None:
    model = body()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running = torch.zeros(())
    with orderone.watch(model, optimizer, to=tmp_path / "a", every=100) as watch:
        for step in range(3):
            run_some(model, optimizer, range(step, step + 1))
            running += 1.0
            watch.log({"eval/loss": 2.0}, loss=running)
    frame = read_records(tmp_path / "a" / "records.jsonl")
    assert frame.filter(pl.col("name") == "loss").select("step", "value").rows() == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]
    assert frame.height == 6


def test_a_vector_is_not_logged() -> None:
    model = body()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        orderone.watch(model, optimizer, to=Kept()) as watch,
        pytest.raises(ConfigError, match=r"'loss' of shape \(3,\)"),
    ):
        watch.log(loss=torch.zeros(3))


@pytest.mark.parametrize("value", ["0.3", None, 1j, torch.zeros((), dtype=torch.complex64), [1.0]])
def test_what_is_no_number_is_refused_at_once_and_not_when_written(value: Any) -> None:
    model = body()
    kept = Kept()
    with orderone.watch(model, torch.optim.SGD(model.parameters()), to=kept) as watch:
        with pytest.raises(ConfigError, match=r"'loss' of .*; expected a single real number"):
            watch.log(loss=value)
        watch.log(loss=torch.tensor(True), more=np.float32(2.0))
    assert [record.value for record in kept.records] == [1.0, 2.0]
    with pytest.raises(RunError, match="a watch that is closed"):
        watch.log(loss=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every = 0"),
        ({"also": ["tensorbord"]}, "sink 'tensorbord'"),
        ({"also": "tensorbord"}, "sink 'tensorbord'"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, settings: Any, message: str) -> None:
    model = body()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        orderone.watch(model, optimizer, to=tmp_path / "a", **settings)
    assert hooks_of(optimizer, model) == 0
    assert not (tmp_path / "a").exists()


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(body().parameters(), lr=0.1)
    with pytest.raises(ModelError, match="no selected parameter"):
        orderone.watch(body(), optimizer, to=tmp_path / "a")
    assert not (tmp_path / "a").exists()
