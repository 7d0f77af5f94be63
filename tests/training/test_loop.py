"""The loop takes the steps that a hand-written one takes, and stops when told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from orderone.core.targets import IGNORED
from orderone.models import LanguageConfig, build
from orderone.scaling.plan import plan
from orderone.training.config import OptimizerConfig
from orderone.training.loop import Manner, StepTaken, train
from orderone.training.losses import mean_loss, next_word_loss
from orderone.training.optimizers import optimizer as optimizer_of
from orderone.training.schedules import Schedule, multiplier


@dataclass(frozen=True)
class Words:
    tokens: Tensor
    targets: Tensor
    real: Tensor


class Bigram(nn.Module):
    """Logits of the next word from the present one alone."""

    def __init__(self, words: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(words, words)

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        return self.table(tokens)


def words(count: int, *, length: int = 4, padding: int = 0) -> list[Words]:
    made = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(5, (2, length), generator=generator)
        targets = torch.randint(5, (2, length), generator=generator)
        real = torch.ones(2, length, dtype=torch.bool)
        if padding:
            real[:, -padding:] = False
            targets[:, -padding:] = IGNORED
        made.append(Words(tokens, targets, real))
    return made


def test_steps_are_those_of_a_bare_loop() -> None:
    torch.manual_seed(0)
    model, bare = Bigram(), Bigram()
    bare.load_state_dict(model.state_dict())
    losses: list[float] = []
    taken = train(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.1),
        words(4),
        loss=next_word_loss,
        observers=[lambda event: losses.append(event.loss.item())],
    )
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.1)
    expected = []
    for batch in words(4):
        optimizer.zero_grad()
        logits = bare(batch.tokens).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch.targets.flatten())
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert taken == 4
    assert losses == expected
    assert torch.equal(model.table.weight, bare.table.weight)


def test_every_observer_hears_the_step_that_one_ends() -> None:
    model = Bigram()
    heard: list[int] = []

    def stop_at_two(event: StepTaken) -> bool:
        return event.step < 2

    observers = [stop_at_two, lambda event: heard.append(event.step)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, optimizer, words(5), loss=next_word_loss, observers=observers) == 2
    assert heard == [1, 2]


def test_steps_bound_the_run() -> None:
    model = Bigram()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, optimizer, words(5), loss=next_word_loss, steps=3) == 3


def test_mean_loss_weighs_words_not_batches() -> None:
    model = Bigram()
    batches = words(1, length=6) + words(1, length=6, padding=4)
    logits = torch.cat([model(b.tokens)[b.real] for b in batches])
    targets = torch.cat([b.targets[b.real] for b in batches])
    expected = nn.functional.cross_entropy(logits, targets).item()
    assert mean_loss(model, batches) == pytest.approx(expected, rel=1e-6)
    assert model.training


def test_accumulated_parts_are_one_big_batch_word_by_word() -> None:
    """Parts with different numbers of words: each word counts the same, not each part."""
    parts = [*words(1), *words(3, padding=3)[1:]]
    big = Words(*(torch.cat([getattr(b, k) for b in parts]) for k in ("tokens", "targets", "real")))
    torch.manual_seed(0)
    model, other = Bigram(), Bigram()
    other.load_state_dict(model.state_dict())
    losses: list[float] = []

    def note(event: StepTaken) -> None:
        assert event.gradient_norm is not None
        losses.extend([event.loss.item(), event.gradient_norm.item()])

    for network, batches, count in ((model, parts, 3), (other, [big], 1)):
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        manner = Manner(accumulate=count, gradient_norm=True)
        train(network, optimizer, batches, loss=next_word_loss, observers=[note], manner=manner)
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-6)
    torch.testing.assert_close(model.table.weight, other.table.weight, rtol=1e-6, atol=1e-7)


def test_clipping_scales_the_gradient_and_the_norm_told_is_the_one_before() -> None:
    model, free = Bigram(), Bigram()
    free.load_state_dict(model.state_dict())
    start = model.table.weight.detach().clone()
    heard: list[StepTaken] = []
    for network, clip in ((model, 0.01), (free, None)):
        train(
            network,
            torch.optim.SGD(network.parameters(), lr=1.0),
            words(1),
            loss=next_word_loss,
            observers=[lambda event: heard.append(event)],
            manner=Manner(clip=clip, gradient_norm=True),
        )
    size = (free.table.weight - start).norm().item()  # lr 1: the step is the gradient
    assert [event.gradient_norm.item() for event in heard] == pytest.approx([size] * 2, rel=1e-5)
    assert (model.table.weight - start).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_bfloat16_products_leave_float32_weights() -> None:
    seen: list[torch.dtype] = []
    model = build(LanguageConfig(n=8, H=2, encoders=1, n_vocab=5, T=4), seed=0)
    model.head.register_forward_hook(lambda *of: seen.append(of[2].dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, words(2), loss=next_word_loss, manner=Manner(precision="bfloat16"))
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_step_whose_scaled_gradients_overflow_is_skipped() -> None:
    model = Bigram()
    start = model.table.weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, growth_interval=1000)
    manner = Manner(precision="float16", scaler=scaler, gradient_norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # One huge loss a word makes the scaled gradient infinite in float32.
    heard: list[StepTaken] = []
    train(
        model,
        optimizer,
        words(1),
        loss=lambda *of: 1e3 * next_word_loss(*of),
        observers=[lambda event: heard.append(event)],
        manner=manner,
    )
    assert torch.equal(model.table.weight, start)
    assert scaler.get_scale() == pytest.approx(1.5e38)
    assert not torch.isfinite(heard[0].gradient_norm)


def test_weight_decay_of_every_group_on_a_step_by_hand() -> None:
    """[DYZ23] eq. (1.94): θ ← (1 − η·wd)θ − η λ̃ m̂/(√v̂ + ε), η the scheduled rate, decay without λ̃.

    In the first step m̂ = g and v̂ = g².
    """
    lr, wd, eps, factor = 0.3, 0.05, 1e-8, 0.25
    config = LanguageConfig(
        n=16, H=2, encoders=1, n_vocab=5, T=4, bias=True, affine=True, head_tied=False
    )
    model = build(config, seed=0)
    made = plan(model, "maximal-update")
    made.initialize_(seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    (batch,) = words(1)
    next_word_loss(model, batch).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    groups = made.param_groups(lr, wd)
    optimizer = optimizer_of(groups, OptimizerConfig(lr=lr, settings={"eps": eps}))
    schedule = Schedule(optimizer, multiplier("linear", steps=9, warmup=4))
    train(model, optimizer, [batch], loss=next_word_loss, schedule=schedule)
    assert len(groups) > 4
    for name, p in model.named_parameters():
        row = made[name]
        decay = lr * factor * wd if row.decays else 0.0
        g = gradients[name]
        rate = lr * factor * row.factor("adamw")
        expected = (1 - decay) * before[name] - rate * g / (g.abs() + eps)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-7)
