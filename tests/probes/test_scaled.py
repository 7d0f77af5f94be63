"""cθ and back: every bit of every parameter, whatever happens in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.selection import Selection
from orderone.models import LanguageConfig, build
from orderone.probes.scaled import ScaleOverflowError, Scaling, scaled

SCRIPT = Path(__file__).with_name("two_processes_scaled.py")


def small(dtype: torch.dtype) -> nn.Module:
    config = LanguageConfig(n=16, H=2, encoders=2, n_vocab=11, T=6, bias=True, affine=True)
    return build(config, seed=3).to(dtype)


def bits(model: nn.Module) -> dict[str, Tensor]:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: p.detach().clone().view(kinds[p.element_size()])
        for name, p in model.named_parameters()
    }


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def with_extremes_(model: nn.Module) -> None:
    """Subnormals of both signs, a negative zero, and the largest number that c = 1024 allows."""
    weight = next(iter(model.parameters()))
    info = torch.finfo(weight.dtype)
    tiny = info.smallest_normal * info.eps
    odd = [tiny, -tiny, -0.0, 3 * tiny, info.smallest_normal, info.max / 1024, 0.0]
    with torch.no_grad():
        weight.view(-1)[: len(odd)] = torch.tensor(odd, dtype=torch.float64).to(weight.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("c", [1024.0, 2.0**-10, 1000.0])
def test_every_bit_comes_back(dtype: torch.dtype, c: float) -> None:
    model = small(dtype)
    with_extremes_(model)
    before = bits(model)
    words = torch.zeros(1, 6, dtype=torch.long)
    with pytest.raises(RuntimeError, match="on purpose"), scaled(model, c):
        raise_if_scaled(model, before)
    assert_same(bits(model), before)
    with scaled(model, c), torch.no_grad():
        model(words)
    assert_same(bits(model), before)


def raise_if_scaled(model: nn.Module, before: dict[str, Tensor]) -> None:
    first = next(iter(model.parameters()))
    assert not torch.equal(first.view(-1), bits_as(before, first))
    raise RuntimeError("on purpose")


def bits_as(before: dict[str, Tensor], like: Tensor) -> Tensor:
    return next(iter(before.values())).view(like.dtype).view(-1)


def test_within_it_the_weights_are_c_times_theirs_and_tied_ones_once() -> None:
    model = small(torch.float32)
    model.copy = model.head  # tied by object
    alias = nn.Parameter(torch.empty(0))
    alias.data = next(iter(model.parameters())).data  # tied by memory
    model.alias = alias
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with scaled(model, 64.0):
        for name, p in model.named_parameters():
            assert torch.equal(p, 64.0 * before[name]), name


def test_a_selection_leaves_the_others_alone() -> None:
    model = small(torch.float32)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with scaled(model, 2.0, selection=Selection()):
        changed = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
    stack = [name for name in before if not name.startswith(("stem", "head"))]
    assert sorted(changed) == sorted(name for name in stack if bool(before[name].any()))


def test_a_pending_backward_pass_stays_valid() -> None:
    model = small(torch.float32)
    loss = model(torch.zeros(1, 6, dtype=torch.long)).square().mean()
    with scaled(model):
        pass
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_scaling_again_and_again_makes_one_check() -> None:
    model = small(torch.float16)
    before = bits(model)
    scaling = Scaling(model)
    for _ in range(3):
        with scaling:
            assert not torch.equal(bits(model)["norm.weight"], before["norm.weight"])
        assert_same(bits(model), before)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (100.0, ScaleOverflowError, "times c = 1024 beyond float16"),
        (float("nan"), ModelError, "NaN or infinite"),
        (float("-inf"), ModelError, "NaN or infinite"),
    ],
)
def test_what_has_no_multiple_is_refused_before_anything_changes(
    value: float, kind: type[Exception], words: str
) -> None:
    model = small(torch.float16)
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[0] = value
    before = bits(model)
    with pytest.raises(kind, match=words) as caught, scaled(model):
        pass
    assert "\n" not in str(caught.value)
    assert_same(bits(model), before)


@pytest.mark.parametrize("c", [0.0, -2.0, float("inf"), float("nan")])
def test_impossible_factors_are_refused(c: float) -> None:
    with pytest.raises(ConfigError, match="positive"), scaled(small(torch.float32), c):
        pass


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(ModelError, match="without memory"), scaled(small(torch.float32).to("meta")):
        pass


def test_flushed_subnormals_are_kept_as_a_copy() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        model = small(torch.float32)
    finally:
        torch.set_flush_denormal(False)
    with_extremes_(model)
    before = bits(model)
    torch.set_flush_denormal(True)
    try:
        with scaled(model, 2.0**-20):
            pass
        with scaled(model):
            pass
    finally:
        torch.set_flush_denormal(False)
    assert_same(bits(model), before)


def test_two_processes_get_every_bit_back(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(tmp_path)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()[-3000:]
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert len(found) >= 6
        assert all(found.values()), found
