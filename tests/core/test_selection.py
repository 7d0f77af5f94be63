import warnings

import pytest
import torch
import transformers
from torch import nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.selection import (
    Selection,
    clean_name,
    grouped,
    kind_of,
    layer_of,
    role_of,
    selected,
    selected_names,
)

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}


def gpt2():
    config = transformers.GPT2Config(n_layer=3, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, intermediate_size=64))


def t5():
    config = transformers.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, intermediate_size=64))


def neox():
    config = transformers.GPTNeoXConfig(**SMALL, intermediate_size=64)
    return transformers.GPTNeoXForCausalLM(config)


def vit():
    config = transformers.ViTConfig(**SMALL, intermediate_size=64)
    return transformers.ViTForImageClassification(config)


def torch_transformer():
    with warnings.catch_warnings(action="ignore"):
        return nn.Transformer(32, 2, 2, 2, 64)


# What lies outside the stack, by hand from each architecture; all else is the stack.
MODELS = {
    gpt2: {"transformer.wte.weight", "transformer.wpe.weight"},
    bert: {
        *(f"bert.embeddings.{x}.weight" for x in ("LayerNorm", "word_embeddings")),
        *(f"bert.embeddings.{x}_embeddings.weight" for x in ("position", "token_type")),
        "bert.embeddings.LayerNorm.bias",
        "cls.predictions.bias",
        *(f"cls.predictions.transform.{x}.weight" for x in ("dense", "LayerNorm")),
        *(f"cls.predictions.transform.{x}.bias" for x in ("dense", "LayerNorm")),
    },
    t5: {
        "shared.weight",
        *(
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            for side in ("encoder", "decoder")
        ),
    },
    bart: {
        "model.shared.weight",
        *(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")),
        *(
            f"model.{side}.layernorm_embedding.{leaf}"
            for side in ("encoder", "decoder")
            for leaf in ("weight", "bias")
        ),
    },
    llama: {"model.embed_tokens.weight", "lm_head.weight"},
    neox: {"gpt_neox.embed_in.weight", "lm_head.weight"},
    vit: {
        "vit.embeddings.cls_token",
        "vit.embeddings.position_embeddings",
        "vit.embeddings.patch_embeddings.projection.weight",
        "vit.embeddings.patch_embeddings.projection.bias",
        "classifier.weight",
        "classifier.bias",
    },
    torch_transformer: set(),
}


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def case(request):
    with torch.device("meta"):
        return request.param(), MODELS[request.param]


def shapes(model):
    return {name: tuple(each.shape) for name, each in model.named_parameters()}


def test_the_default_is_the_stack(case):
    model, outside = case
    assert set(selected(model)) == set(shapes(model)) - outside


def test_names_alone_choose_the_same(case):
    model, _ = case
    for selection in (Selection(), Selection(embeddings=True), Selection(exclude=("(?i)norm|ln",))):
        assert selected_names(shapes(model), selection) == list(selected(model, selection))


def test_embeddings_bring_all_but_scalars(case):
    model, _ = case
    assert set(selected(model, Selection(embeddings=True))) == set(shapes(model))


def test_every_matrix_of_the_stack_has_a_role_and_a_layer(case):
    model, _ = case
    names = [name for name in selected(model) if kind_of(name) == "matrices"]
    assert all(layer_of(name) for name in names)
    known = {"query", "key", "value", "query-key-value", "output", "mlp-in", "mlp-gate", "mlp-out"}
    assert set(grouped(names, "role")) <= known


def test_groups_part_the_names(case):
    names = list(selected(case[0]))
    for by in ("total", "layer", "role", "kind"):
        groups = grouped(names, by)
        assert sorted(name for group in groups.values() for name in group) == sorted(names)


def test_layers_of_one_stack_and_of_two():
    with torch.device("meta"):
        assert list(grouped(selected(gpt2()), "layer")) == ["0", "1", "2", "rest"]
        two = [f"{side}.{i}" for side in ("encoder", "decoder") for i in range(2)]
        assert set(grouped(selected(t5()), "layer")) == {*two, "rest"}


def test_gains_apart_from_matrices():
    with torch.device("meta"):
        model = gpt2()
    groups = grouped(selected(model), "kind")
    assert {name.split(".")[-2] for name in groups["gains"]} == {"ln_1", "ln_2", "ln_f"}
    assert all(name.endswith(".bias") for name in groups["biases"])
    assert all(model.get_parameter(name).ndim == 2 for name in groups["matrices"])


OURS = {
    "stem.word.weight": (None, "embedding"),
    "stem.position.weight": (None, "position"),
    "stem.patch.weight": (None, "embedding"),
    "blocks.0.path.Q.weight": ("0", "query"),
    "blocks.0.path.K.weight": ("0", "key"),
    "blocks.0.path.V.weight": ("0", "value"),
    "blocks.0.path.U.weight": ("0", "output"),
    "blocks.0.path.U.bias": ("0", "bias"),
    "blocks.0.norm.weight": ("0", "norm"),
    "blocks.0.norm.bias": ("0", "norm"),
    "blocks.1.path.W.weight": ("1", "mlp-in"),
    "blocks.1.path.X.weight": ("1", "mlp-out"),
    "blocks.1.norm.weight": ("1", "norm"),
    "norm.weight": (None, "norm"),
    "head.W.weight": (None, "head"),
    "head.W.bias": (None, "head"),
}


def test_our_own_names():
    assert {name: (layer_of(name), role_of(name)) for name in OURS} == OURS
    chosen = selected_names(dict.fromkeys(OURS, (2, 2)))
    assert chosen == [name for name in OURS if name.startswith(("blocks", "norm"))]
    assert layer_of("encoder.blocks.3.path.Q.weight") == "encoder.3"
    assert layer_of("decoder.blocks.0.path.Q.weight") == "decoder.0"


def test_timm_and_torchvision_names():
    timm = [
        "cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias",
        "blocks.0.norm1.weight", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight",
        "blocks.0.ls1.gamma", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight",
        "norm.weight", "head.weight", "head.bias",
    ]  # fmt: skip
    assert selected_names(dict.fromkeys(timm, (2, 2))) == timm[4:11]
    assert [role_of(name) for name in timm[5:7]] == ["query-key-value", "output"]
    assert kind_of("blocks.0.ls1.gamma") == "gains"
    vision = [
        "class_token", "conv_proj.weight", "encoder.pos_embedding",
        "encoder.layers.encoder_layer_11.ln_1.weight",
        "encoder.layers.encoder_layer_11.self_attention.in_proj_weight",
        "encoder.ln.weight", "heads.head.weight",
    ]  # fmt: skip
    assert selected_names(dict.fromkeys(vision, (2, 2))) == vision[3:6]
    assert layer_of(vision[3]) == "encoder.11"


def test_norms_before_the_stack_are_not_its_own():
    names = ["pre_layrnorm.weight", "emb_norm.weight", "blocks.0.attn.q.weight", "ln_f.weight"]
    assert selected_names(dict.fromkeys(names, (2, 2))) == names[2:]


@pytest.mark.parametrize(
    "wrapped",
    [
        "module.h.0.attn.q.weight",
        "_orig_mod.h.0.attn.q.weight",
        "module._orig_mod.h.0.attn.q.weight",
        "_fsdp_wrapped_module.h.0._fsdp_wrapped_module.attn._checkpoint_wrapped_module.q.weight",
    ],
)
def test_wrappers_leave_no_trace(wrapped):
    assert clean_name(wrapped) == "h.0.attn.q.weight"
    assert layer_of(wrapped) == "0"


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod"])
def test_a_wrapped_model_selects_as_the_plain_one(wrapper):
    model = torch_transformer()
    assert list(selected(nn.ModuleDict({wrapper: model}))) == list(selected(model))


def test_tied_parameters_once():
    with torch.device("meta"):
        model = gpt2()
    model.tie_weights()
    names = list(selected(model, Selection(embeddings=True)))
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


class Odd(nn.Module):
    """Names say nothing here: ``table`` is an embedding by its type alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.temperature = nn.Parameter(torch.ones(()))
        self.one = nn.Parameter(torch.ones(1, 1))


def test_without_a_stack_everything_but_embeddings_and_scalars():
    assert list(selected(Odd())) == ["first.weight", "first.bias"]
    assert set(selected(Odd(), Selection(scalars=True))) >= {"temperature", "one"}
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    assert list(selected(plain)) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_pipeline_of_parts_is_no_stack_but_the_blocks_inside_are():
    names = ["0.wte.weight", "0.project.weight"]
    names += [f"1.h.{i}.attn.{x}.weight" for i in range(2) for x in "qk"]
    assert selected_names(dict.fromkeys(names, (2, 2))) == names[2:]


def test_masks_kept_in_old_checkpoints_are_no_parameters():
    parameters = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_attn.bias": (12,)}
    buffers = {"h.0.attn.bias": (1, 1, 8, 8), "h.0.attn.masked_bias": (1,), "rotary.inv_freq": (8,)}
    assert selected_names(parameters | buffers, Selection(embeddings=True, scalars=True)) == list(
        parameters
    )


def test_include_and_exclude():
    with torch.device("meta"):
        model = gpt2()
    assert list(selected(model, Selection(include=("wte",)))) == ["transformer.wte.weight"]
    attention = selected(model, Selection(include=(r"\.attn\.",), exclude=("bias$", r"h\.0\.")))
    assert list(attention) == [
        f"transformer.h.{i}.attn.{x}.weight" for i in (1, 2) for x in ("c_attn", "c_proj")
    ]


def test_bad_patterns_are_named():
    with pytest.raises(ConfigError, match=r"pattern '\('"):
        selected(Odd(), Selection(include=("(",)))
    with pytest.raises(ConfigError, match="pattern 'attention' matches none"):
        selected(Odd(), Selection(exclude=("attention",)))
    with pytest.raises(ModelError, match="no parameter of 5 is selected"):
        selected(Odd(), Selection(exclude=(".",)))
