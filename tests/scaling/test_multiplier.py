"""The output multiplier reaches the logits once, whatever the model multiplies by itself."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import orderone
from orderone.core.errors import ModelError
from orderone.models import LanguageConfig, build
from orderone.scaling.multiplier import InputMultiplier, install_, own_multiplier, remove_
from orderone.scaling.plan import Plan

TOKENS = torch.arange(6).view(1, 6)


def gpt2(n: int = 16) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=n, n_layer=1, n_head=2, vocab_size=20, n_positions=8)
    return GPT2LMHeadModel(config).eval()


def t5(*, tied: bool = True) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=20,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def ours(output_multiplier: float = 1.0) -> nn.Module:
    config = LanguageConfig(
        n=16, H=2, encoders=1, n_vocab=20, T=8, output_multiplier=output_multiplier
    )
    return build(config, seed=0)


class TiedWithBias(nn.Module):
    """A head whose matrix is the word embedding's and whose bias is its own, as BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.word.weight
        nn.init.normal_(self.head.bias)

    def forward(self, s: Tensor) -> Tensor:
        return self.head(s)


def hooks(model: nn.Module) -> list[InputMultiplier]:
    found = [h for m in model.modules() for h in m._forward_pre_hooks.values()]
    return [hook for hook in found if isinstance(hook, InputMultiplier)]


def logits(model: Any, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        out = model(tokens)
    return out if isinstance(out, Tensor) else out.logits


@pytest.mark.parametrize(("s", "power"), [(0.0, -0.5), (0.5, -0.75), (1.0, -1.0)])
@pytest.mark.parametrize("make", [gpt2, ours])
def test_logits_are_multiplied_once(make: Any, s: float, power: float) -> None:
    """By n^(−(1+s)/2), (1.34), however often the plan is applied."""
    model = make()
    plan = orderone.plan(model, s=s)
    plan.initialize_()
    with_hook = logits(model)
    plan.initialize_()
    plan.on(model)
    assert len(hooks(model)) == 1
    assert torch.equal(logits(model), with_hook)
    remove_(model)
    torch.testing.assert_close(with_hook, 16**power * logits(model))
    assert plan.output_multiplier == pytest.approx(16**power)


def test_another_strategy_replaces_the_multiplier() -> None:
    model = gpt2()
    for s in (0.0, 1.0):
        orderone.plan(model, s=s).on(model)
    assert [hook.factor for hook in hooks(model)] == [pytest.approx(1 / 16)]
    standard = orderone.plan(model, "standard")
    standard.on(model)
    assert hooks(model) == []
    assert standard.output_multiplier == 1.0


@pytest.mark.parametrize("own", [0.125, 1.0, 3.0])
def test_our_own_setting_is_part_of_the_product(own: float) -> None:
    """config.output_multiplier stays; the hook makes up the rest."""
    model, plain = ours(own), ours()
    orderone.plan(model, s=1.0).initialize_()
    orderone.plan(plain, s=1.0).initialize_()
    torch.testing.assert_close(logits(model), logits(plain))
    assert [hook.factor for hook in hooks(model)] == [pytest.approx(1 / 16 / own)]


def test_t5_has_its_multiplier_at_s_0() -> None:
    """transformers' T5 multiplies by d_model^(−½) itself: nothing to add at s = 0, n^(−½) at 1."""
    model = t5()
    assert own_multiplier(model, "lm_head") == pytest.approx(1 / 4)
    install_(model, "lm_head", 16**-0.5)
    assert hooks(model) == []
    install_(model, "lm_head", 16**-1)
    assert [hook.factor for hook in hooks(model)] == [pytest.approx(1 / 4)]
    plan = orderone.plan(model)
    plan.initialize_()
    assert plan.output_multiplier == pytest.approx(1 / 4)
    assert hooks(model) == []


def test_untied_t5_has_none() -> None:
    assert own_multiplier(t5(tied=False), "lm_head") == 1.0


def configured(**settings: Any) -> nn.Module:
    from transformers import PretrainedConfig

    model = TiedWithBias()
    config = PretrainedConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    model.config = config
    return model


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"model_type": "cohere", "logit_scale": 0.0625}, 0.0625),
        ({"model_type": "granite", "logits_scaling": 8.0}, 1 / 8),
        ({"model_type": "hyperclovax", "logits_scaling": 8.0}, 8.0),
        ({"model_type": "falcon_h1", "lm_head_multiplier": 0.5}, 0.5),
        ({"model_type": "umt5", "d_model": 64}, 1 / 8),
        ({"model_type": "llama"}, 1.0),
        ({"model_type": "unheard-of", "logit_scale": None}, 1.0),
    ],
)
def test_known_configurations(settings: dict[str, Any], own: float) -> None:
    assert own_multiplier(configured(**settings), "head") == pytest.approx(own)


def test_unknown_rescaling_is_refused() -> None:
    model = configured(model_type="unheard-of", logits_scaling=8.0)
    with pytest.raises(ModelError, match=r"logits_scaling = 8\.0 in the configuration of 'unheard"):
        own_multiplier(model, "head")


def test_a_tied_heads_bias_is_not_multiplied() -> None:
    model = TiedWithBias()
    s = torch.randn(3, 4)
    expected = 0.5 * (s @ model.word.weight.T) + model.head.bias
    install_(model, "head", 0.5)
    torch.testing.assert_close(model(s), expected)


def test_a_head_called_by_keyword_is_refused() -> None:
    """Never without the multiplier in silence."""
    model = TiedWithBias()
    install_(model, "head", 0.5)
    with pytest.raises(ModelError, match="Linear called without a tensor in first place"):
        model.head(input=torch.randn(3, 4))


def test_copies_and_pickles_keep_the_multiplier() -> None:
    model = gpt2()
    orderone.plan(model, s=1.0).initialize_()
    expected = logits(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert len(hooks(other)) == 1
        assert hooks(other)[0] is not hooks(model)[0]
        assert torch.equal(logits(other), expected)


def test_save_and_load_through_the_plan(tmp_path: Path) -> None:
    """The file holds weights alone; ``on`` puts the multiplier back, and does not draw."""
    from transformers import GPT2LMHeadModel

    model = gpt2()
    plan = orderone.plan(model, s=1.0)
    plan.initialize_(seed=3)
    model.save_pretrained(tmp_path)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert hooks(loaded) == []
    read = Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8")).on(loaded)
    assert read == plan
    assert torch.equal(logits(loaded), logits(model))
