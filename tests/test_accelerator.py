"""What holds on a CPU holds on a GPU: measured there against float64 on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import orderone
from orderone.core.reductions import norm, one_minus_cosine
from orderone.core.run import RunFolder
from orderone.core.selection import selected
from orderone.data.batches import Batch
from orderone.models import LanguageConfig, build
from orderone.probes.scaled import scaled

DEVICE = torch.device("cuda")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CONFIG = """
seed = 1
steps = 12
batch_size = 4
clip = 0.5
precision = "{precision}"
compile = {compile}
deterministic = true
evaluate_every = 4
evaluation_batches = 2
checkpoint_every = 4
[model]
kind = "language"
n = 64
H = 4
encoders = 2
dropout = 0.1
[data]
corpus = "stdlib"
limit = 200000
vocabulary = 400
T = 32
[optimizer]
lr = 0.3
"""


PICTURES = """
seed = 1
steps = 12
batch_size = 64
deterministic = true
evaluate_every = 4
checkpoint_every = 4
optimizer = { lr = 0.3 }
[model]
kind = "vision"
n = 32
H = 2
encoders = 1
patch = 4
dropout = 0.1
[images]
name = "digits"
augmentation = "light"
"""


def language(**changes: object) -> nn.Module:
    config = LanguageConfig.model_validate(
        {"n": 64, "H": 4, "encoders": 2, "n_vocab": 50, "T": 16, **changes}
    )
    return build(config, seed=0)


def words() -> Tensor:
    return torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reductions_are_those_of_float64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3_000_001, generator=generator).to(dtype)
    b = (a.double() + 1e-2 * torch.randn(3_000_001, generator=generator)).to(dtype)
    one, other = a.double(), b.double()
    size = one.norm()
    assert norm(a.to(DEVICE)).item() == pytest.approx(size.item(), rel=1e-9)
    rest = other - one * (one @ other) / size.square()
    sine = rest.square().sum() / other.square().sum()
    expected = (sine / (1 + (1 - sine).sqrt())).item()
    assert one_minus_cosine(a.to(DEVICE), b.to(DEVICE)).item() == pytest.approx(expected, rel=1e-6)


def test_a_plan_draws_the_same_weights() -> None:
    here, there = language(), language().to(DEVICE)
    for model in (here, there):
        orderone.plan(model, strategy="hybrid").initialize_(seed=5)
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(a, b.cpu())


def test_watch_sees_the_step_that_was_taken(tmp_path: Path) -> None:
    """Also while the model runs in bfloat16."""
    model = language().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = words().to(DEVICE)
    with orderone.watch(model, optimizer, to=tmp_path / "run", every=1) as watch:
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(inputs).float().square().mean()
            loss.backward()
            before = {name: p.double().cpu() for name, p in selected(model).items()}
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    after = {name: p.double().cpu() for name, p in selected(model).items()}
    step = torch.cat([(after[name] - before[name]).flatten() for name in before])
    theta = torch.cat([before[name].flatten() for name in before])
    records = RunFolder.open(tmp_path / "run").records().filter(step=3)
    found = {
        row["name"]: row["value"]
        for row in records.to_dicts()
        if row.get("group") in (None, "total")
    }
    assert found["step_norm"] == pytest.approx(step.norm().item(), rel=1e-6)
    alignment = (step @ theta / step.norm() / theta.norm()).item()
    assert found["alignment"] == pytest.approx(alignment, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaling_restores_every_bit(dtype: torch.dtype) -> None:
    model = language().to(DEVICE, dtype)
    before = [p.clone() for p in model.parameters()]
    with scaled(model, 1024.0):
        assert not torch.equal(before[0], next(iter(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_measurements_are_those_of_the_cpu() -> None:
    """Kernels, tangent, saturation and heads in float64, here and there."""
    here, there = language().double().eval(), language().double().eval().to(DEVICE)
    tokens = words()
    for measure in (orderone.kernel, orderone.tangent):
        a, b = measure(here, tokens), measure(there, tokens.to(DEVICE))
        pairs = zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]
        for one, other in pairs:
            K, L = (getattr(x, "total", None) for x in (one, other))
            K, L = (one.G, other.G) if K is None else (K, L)
            torch.testing.assert_close(K, L.cpu(), rtol=1e-9, atol=1e-12)
    batches = [
        Batch(tokens=x, targets=x, real=torch.ones_like(x, dtype=torch.bool))
        for x in (tokens, tokens.to(DEVICE))
    ]
    levels = [orderone.saturation(m, [b]) for m, b in zip((here, there), batches, strict=True)]
    for a, b in zip(levels[0].layers, levels[1].layers, strict=True):
        assert a.cosine == pytest.approx(b.cosine, rel=1e-9)
    found = [orderone.heads(m, [b]) for m, b in zip((here, there), batches, strict=True)]
    for a, b in zip(found[0].heads, found[1].heads, strict=True):
        assert a.effective_positions == pytest.approx(b.effective_positions, rel=1e-9)


def trained(config: Path, to: Path, *more: str) -> dict[str, Any]:
    """What a process of its own prints: the tests' shape checker is not something to compile."""
    words = [sys.executable, "-m", "orderone", "train", str(config), "--to", str(to), "--json"]
    done = subprocess.run([*words, *more], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


TRAININGS = {
    "float32": CONFIG.format(precision="float32", compile="false"),
    "bfloat16 compiled": CONFIG.format(precision="bfloat16", compile="true"),
    "float16": CONFIG.format(precision="float16", compile="false"),
    "images": PICTURES,
}


@pytest.mark.parametrize("training", TRAININGS)
def test_a_run_resumed_is_the_run(tmp_path: Path, training: str) -> None:
    config, whole, cut = tmp_path / "c.toml", tmp_path / "a", tmp_path / "b"
    config.write_text(TRAININGS[training])
    for to in (whole, cut):
        trained(config, to)
    # What a kill right after the checkpoint of step 8 leaves.
    (cut / "checkpoints" / "step00000012" / "model.safetensors").write_bytes(b"torn")
    (cut / "result.json").unlink()
    assert trained(config, cut, "--resume")["resumed_from"] == 8
    last = Path("checkpoints") / "step00000012" / "model.safetensors"
    one, other = load_file(whole / last), load_file(cut / last)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (whole / "records.jsonl").read_bytes() == (cut / "records.jsonl").read_bytes()
