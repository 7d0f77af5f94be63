"""Models named on a command line: any width, same inputs, nothing fetched, one line when wrong."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orderone.core.errors import ConfigError, MissingPackageError, ModelError
from orderone.experiments.sources import source
from orderone.models import preset
from orderone.scaling.adapters import at_width, outside_source
from orderone.scaling.width import config_at_width, width_of

transformers = pytest.importorskip("transformers")

WORDS: dict[str, Any] = {
    "vocab_size": 50,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_head": 4, "n_layer": 1, **WORDS}),
    "bert": (
        "BertForMaskedLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            **WORDS,
        },
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48, **WORDS},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, **WORDS},
    ),
    "llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 88,
            **WORDS,
        },
    ),
    "vit": (
        "ViTForImageClassification",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 8,
        },
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_source_positions": 8,
            "max_target_positions": 9,
            "decoder_start_token_id": 0,
            **WORDS,
        },
    ),
}


def written(folder: Path, kind: str, **more: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": kind, **CONFIGS[kind][1], **more}))
    return file


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("width", [None, 16, 64])
def test_a_configuration_alone_is_a_model_at_any_width(
    kind: str, width: int | None, tmp_path: Path
) -> None:
    """The class that suits, the width asked for, heads of the same size, a loss with a gradient."""
    found = source(str(written(tmp_path, kind)))
    model = found.build(width, seed=0)
    assert (found.kind, type(model).__name__) == ("transformers", CONFIGS[kind][0])
    config: Any = model.config
    wanted = width or 32
    assert width_of(config) == wanted
    assert config.num_attention_heads == wanted // 8
    task = found.task(model)
    loss = task.loss(model, task.example(2, seed=0))
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert torch.isfinite(loss)
    assert any(bool(grad.any()) for grad in grads)


def test_a_width_changes_widths_alone(tmp_path: Path) -> None:
    """Every setting of a Llama at twice the width is that of the original, but for five."""
    config = outside_source(str(written(tmp_path, "llama"))).config  # pyright: ignore[reportAttributeAccessIssue]  # transformers'
    before, after = config.to_dict(), config_at_width(config, 64).to_dict()
    changed = {name: after[name] for name in after if after[name] != before[name]}
    assert changed == {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 176,
    }
    assert config.to_dict() == before


def test_heads_that_cannot_keep_their_size_keep_their_number(tmp_path: Path) -> None:
    config = outside_source(str(written(tmp_path, "llama", head_dim=8))).config  # pyright: ignore[reportAttributeAccessIssue]  # transformers'
    small = config_at_width(config, 8)  # half a key head would be left
    assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim) == (4, 2, 2)


def test_nested_configurations_follow() -> None:
    text = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64)
    config = types.SimpleNamespace(text_config=text, to_dict=dict)
    assert width_of(config) == 32
    assert config_at_width(config, 64).text_config.intermediate_size == 128


def test_ours_keep_head_size_and_multiplier() -> None:
    small = config_at_width(preset("vit-b16"), 128)
    assert (small.n, small.H, small.C, small.mlp_width) == (128, 2, 64, 512)
    lm = config_at_width(preset("small-lm-post"), 384)
    assert (lm.n, lm.H, lm.d_ff) == (384, 6, 256)


def test_a_model_at_another_width_is_of_the_same_class(tmp_path: Path) -> None:
    model = source(str(written(tmp_path, "gpt2"))).build()
    other = at_width(model, 64)
    assert type(other) is type(model)
    assert {n: p.ndim for n, p in other.named_parameters()} == {
        n: p.ndim for n, p in model.named_parameters()
    }
    with pytest.raises(ConfigError, match="without a configuration"):
        at_width(nn.Linear(2, 2), 4)


def test_weights_follow_from_the_seed_and_meta_has_none(tmp_path: Path) -> None:
    found = source(str(written(tmp_path, "gpt2")))
    a, b, c = found.build(seed=1), found.build(seed=1), found.build(seed=2)
    same = [torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)]
    other = [torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True)]
    assert all(same)
    assert not all(other)
    assert {p.device.type for p in found.build(device="meta").parameters()} == {"meta"}
    assert sum(p.numel() for p in source("preset:r2c2").build(device="meta").parameters()) > 2.6e9


def test_the_example_is_the_same_at_every_width_and_without_pads(tmp_path: Path) -> None:
    found = source(str(written(tmp_path, "gpt2")))
    batches = [found.task(found.build(w)).example(4, seed=3) for w in (16, 64)]
    assert torch.equal(batches[0]["input_ids"], batches[1]["input_ids"])
    assert not bool((batches[0]["input_ids"] == WORDS["pad_token_id"]).any())


def test_a_named_architecture_wins_and_its_code_does_not_run(tmp_path: Path) -> None:
    """``auto_map`` names code beside the configuration; it is not even looked for."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    file = written(
        tmp_path, "gpt2", architectures=["GPT2Model"], auto_map={"AutoModel": "evil.Evil"}
    )
    model = source(str(file)).build()
    assert type(model).__name__ == "GPT2Model"
    task = source(str(file)).task(model)
    assert torch.isfinite(task.loss(model, task.example(2, 0)))  # headless: to fixed targets


def test_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somebodys_models")
    module.mlp = lambda width=8: nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 5))  # pyright: ignore[reportAttributeAccessIssue]  # made here
    module.nothing = lambda width: None  # pyright: ignore[reportAttributeAccessIssue]  # likewise
    monkeypatch.setitem(sys.modules, "somebodys_models", module)
    found = source("somebodys_models:mlp")
    model = found.build(16)
    task = found.task(model)
    assert (task.shape, task.classes) == ((3,), 5)
    assert torch.isfinite(task.loss(model, task.example(4, 0)))
    assert sum(p.numel() for p in found.build().parameters()) == 3 * 8 + 8 + 8 * 5 + 5
    with pytest.raises(ConfigError, match="NoneType"):
        source("somebodys_models:nothing").build(4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON list"),
        ("{}", "model_type None"),
        ('{"model_type": "no-such"}', "model_type 'no-such'"),
        ('{"model_type": "gpt2", "n_embd": "wide"}', "gpt2"),
        ('{"model_type": "gpt2", "n_embd": 30, "n_head": 4}', "cannot build"),
    ],
)
def test_bad_configurations_are_one_line(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        source(str(file)).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/config.json", "model 'nowhere/config.json'"),
        ("no_such_module:f", "cannot be imported"),
        ("torch:no_such_name", "cannot be imported"),
        ("torch:pi", "is a float"),
        ("torch.nn:Linear", "fails when called with 64"),
        ("preset:nothing", "preset 'nothing'"),
    ],
)
def test_bad_names_are_one_line(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        source(name).build(64)
    assert "\n" not in str(caught.value)


def test_a_factory_of_this_folder_is_found_and_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``python -m`` finds it; whatever a user's code raises is one line."""
    (tmp_path / "made_here.py").write_text(
        "def make(width):\n    raise RuntimeError('of two\\nlines')\n"
    )
    (tmp_path / "made_wrong.py").write_text("def make(width) return\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    with pytest.raises(ConfigError, match=r"with 64 \(RuntimeError: of two lines\)") as caught:
        source("made_here:make").build(64)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot be imported \(SyntaxError"):
        source("made_wrong:make")


def test_impossible_widths_are_one_line(tmp_path: Path) -> None:
    found = source(str(written(tmp_path, "bert")))
    with pytest.raises(ConfigError, match="width 30 with 4 heads of size 8"):
        found.build(30)
    with pytest.raises(ConfigError, match="width 0"):
        found.build(0)
    with pytest.raises(ConfigError, match="no field that is a width"):
        config_at_width(types.SimpleNamespace(layers=3), 8)


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("gpt2", "GPT2ForSequenceClassification", {"num_labels": 3}),
        ("bert", "BertForSequenceClassification", {"num_labels": 3}),
        ("bert", "BertForSequenceClassification", {"num_labels": 1}),
        ("bert", "BertForTokenClassification", {"num_labels": 3}),
        ("bert", "BertForQuestionAnswering", {}),
        ("bert", "BertForPreTraining", {}),
        ("t5", "T5EncoderModel", {}),
    ],
)
def test_heads_other_than_words_have_a_loss(
    kind: str, name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """One label a text, one a word, or targets of our own: the head's gradient is not zero."""
    found = source(str(written(tmp_path, kind, architectures=[name], **more)))
    model = found.build(seed=0)
    assert type(model).__name__ == name
    task = found.task(model)
    loss = task.loss(model, task.example(2, seed=0))
    loss.backward()
    assert torch.isfinite(loss)
    *_, last = (p for p in model.parameters() if p.grad is not None)
    assert last.grad is not None
    assert last.grad.any()


def test_a_model_that_does_not_take_the_guessed_batch_is_one_line(tmp_path: Path) -> None:
    """A mixture that asks for more experts than it has."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 4, "head_dim": 8}
    config = {**CONFIGS["llama"][1], **experts, "model_type": "mixtral"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    found = source(str(file))
    model = found.build(seed=0)
    task = found.task(model)
    with pytest.raises(ModelError, match="MixtralForCausalLM that fails on a guessed") as wrong:
        task.loss(model, task.example(2, seed=0))
    assert "\n" not in str(wrong.value)


def test_timm_that_lacks_what_it_imports_is_not_called_missing(tmp_path: Path) -> None:
    """torchvision is what lacks here, where the registry's breaks transformers."""
    (tmp_path / "timm.py").write_text("import a_package_that_nobody_has\n")
    words = "from orderone.experiments.sources import source; source('timm:vit_tiny_patch16_224')"
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = done.stderr.strip().splitlines()[-1]
    assert "timm, which cannot be imported (No module named 'a_package_that_nobody_has')" in said


def test_timm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match="timm"):
        source("timm:vit_tiny_patch16_224")
