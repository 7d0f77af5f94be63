"""What a plan lives through: copies, saved weights, the meta device; and what it refuses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone
from orderone.core.errors import ModelError
from orderone.models import LanguageConfig, build
from orderone.scaling.plan import Plan

WORDS, LENGTH = 21, 8


def gpt2(width: int = 16) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=1, n_head=2, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def ours(width: int = 16, device: str = "cpu") -> nn.Module:
    config = LanguageConfig(n=width, H=2, encoders=1, n_vocab=WORDS, T=LENGTH, pad=0, affine=True)
    return build(config, device=device)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train_(model: Any, plan: Plan) -> None:
    """Three steps on random words."""
    tokens = torch.randint(1, WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(plan.param_groups(0.1, 0.01))
    for _ in range(3):
        out = model(tokens[:, :-1])
        logits = out if isinstance(out, Tensor) else out.logits
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def deep_copied(model: nn.Module, tmp_path: Path) -> nn.Module:
    return copy.deepcopy(model)


def assigned(model: Any, tmp_path: Path) -> nn.Module:
    """``assign=True`` puts new tensors in place of the parameters, and so unties them."""
    other = ours() if not hasattr(model, "tie_weights") else gpt2()
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    if hasattr(other, "tie_weights"):
        other.tie_weights()
    return other


def saved_and_loaded(model: Any, tmp_path: Path) -> nn.Module:
    model.save_pretrained(tmp_path)
    return type(model).from_pretrained(tmp_path)


def pickled(model: nn.Module, tmp_path: Path) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


Survival = Callable[[Any, Path], nn.Module]
LIVES = [
    (ours, deep_copied),
    (ours, assigned),
    (ours, pickled),
    (gpt2, deep_copied),
    (gpt2, assigned),
    (gpt2, saved_and_loaded),
]


@pytest.mark.parametrize(("make", "survive"), LIVES)
def test_same_table_weights_and_update(
    make: Callable[[], Any], survive: Survival, tmp_path: Path
) -> None:
    """Of the model and of what became of it: all to the bit, in one process."""
    model = make()
    plan = orderone.plan(model, "maximal-update")
    plan.initialize_(seed=1)
    other = survive(model, tmp_path)
    assert orderone.plan(other, "maximal-update") == plan
    bound = plan.on(other)
    start = weights(other)
    assert all(torch.equal(value, weights(model)[name]) for name, value in start.items())
    bound.initialize_(seed=1)
    assert all(torch.equal(value, start[name]) for name, value in weights(other).items())
    train_(model.eval(), plan)
    train_(other.eval(), bound)
    assert all(torch.equal(p, weights(other)[name]) for name, p in weights(model).items())
    assert not torch.equal(next(iter(start.values())), next(iter(weights(other).values())))


def test_meta_then_to_empty() -> None:
    """Planned without memory, initialised with it: the weights of a model built in memory."""
    model = ours(device="meta")
    plan = orderone.plan(model)
    with pytest.raises(ModelError, match="meta device"):
        plan.initialize_()
    model.to_empty(device="cpu")
    plan.initialize_(seed=1)
    real = ours()
    direct = orderone.plan(real)
    direct.initialize_(seed=1)
    assert plan == direct
    assert all(torch.equal(value, weights(real)[name]) for name, value in weights(model).items())
    train_(model, plan)
    train_(real, direct)
    assert all(torch.equal(value, weights(real)[name]) for name, value in weights(model).items())


def test_a_tie_that_to_empty_broke_is_named() -> None:
    """torch makes two tensors of one; until they are tied again nothing is initialised."""
    with torch.device("meta"):
        model = gpt2()
    plan = orderone.plan(model)
    model.to_empty(device="cpu")
    if model.lm_head.weight is model.transformer.wte.weight:
        pytest.skip("this torch keeps ties")
    with pytest.raises(ModelError, match=r"no longer the same tensor.*tie_weights"):
        plan.initialize_()
    model.tie_weights()
    plan.initialize_()


def test_a_checkpoint_of_the_optimizer_resumes() -> None:
    """Factors live in the groups that torch saves: a resumed run takes the same step."""
    model = ours()
    plan = orderone.plan(model)
    plan.initialize_()
    optimizer = torch.optim.AdamW(plan.param_groups(0.1, 0.01))
    saved = copy.deepcopy(optimizer.state_dict())
    other = torch.optim.AdamW(plan.param_groups(7.0, 7.0))
    other.load_state_dict(saved)
    assert [g["lr"] for g in other.param_groups] == [g["lr"] for g in optimizer.param_groups]
    assert [g["param_names"] for g in other.param_groups] == [
        g["param_names"] for g in optimizer.param_groups
    ]


def test_another_model_is_one_line_that_names_what_differs() -> None:
    """Missing, extra and misshapen, together."""
    plan = orderone.plan(gpt2())
    with pytest.raises(ModelError) as wrong:
        plan.initialize_(model=gpt2(width=32))
    assert "shape of transformer.wte.weight 21×32 instead of 21×16" in str(wrong.value)
    assert "and 13 more" in str(wrong.value)
    with pytest.raises(ModelError) as wrong:
        plan.param_groups(1.0, model=ours())
    assert "missing transformer.wte.weight" in str(wrong.value)
    assert "extra stem.position.weight" in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_plan_does_not_keep_its_model_alive() -> None:
    plan = orderone.plan(ours())
    for use in (plan.initialize_, lambda: plan.param_groups(1.0)):
        with pytest.raises(ModelError, match="a plan without a model"):
            use()
    plan.initialize_(model=ours())
    assert pickle.loads(pickle.dumps(plan)) == plan
