"""Our weights in transformers' models, and dense forward passes written a second time."""

from typing import Any

import torch
from torch import Tensor, nn

from orderone.models import (
    EncoderDecoderConfig,
    EncoderDecoderTransformer,
    LanguageConfig,
    LanguageTransformer,
    VisionConfig,
    VisionTransformer,
    build,
)

LETTERS = ("Q", "K", "V", "U", "W", "X")


def language(**settings: Any) -> LanguageTransformer:
    """A small language model, every parameter (gains and biases too) away from its default."""
    config = LanguageConfig(**{**WORDS, **settings})
    model = build(config, seed=1)
    assert isinstance(model, LanguageTransformer)
    return stirred(model)


def encoder_decoder(**settings: Any) -> EncoderDecoderTransformer:
    config = EncoderDecoderConfig(**{**WORDS, "decoders": 2, **settings})
    model = build(config, seed=1)
    assert isinstance(model, EncoderDecoderTransformer)
    return stirred(model)


def vision(**settings: Any) -> VisionTransformer:
    config = VisionConfig(**{**PIXELS, **settings})
    model = build(config, seed=1)
    assert isinstance(model, VisionTransformer)
    return stirred(model)


WORDS: dict[str, Any] = {"n": 24, "H": 3, "encoders": 2, "n_vocab": 31, "T": 12, "init_std": 0.2}
PIXELS: dict[str, Any] = {
    "n": 24,
    "H": 3,
    "encoders": 2,
    "image_size": 16,
    "patch": 4,
    "n_out": 5,
    "init_std": 0.2,
}


@torch.no_grad()
def stirred(model: Any) -> Any:
    """The model with noise on every vector, so that no bias is 0 and no gain is 1."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def words(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(31, shape, generator=torch.Generator().manual_seed(seed))


def images(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gpt2(ours: LanguageTransformer) -> nn.Module:
    """transformers' GPT-2 with our weights; its Conv1D holds transposes, q, k, v in one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = ours.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.n_vocab,
            n_positions=config.T,
            n_embd=config.n,
            n_layer=config.encoders,
            n_head=config.H,
            n_inner=config.mlp_width,
            layer_norm_epsilon=config.epsilon,
        )
    )
    state = {
        "transformer.wte.weight": ours.stem.word.weight,
        "transformer.wpe.weight": ours.stem.position.weight,
        "transformer.ln_f.weight": ours.norm.weight,
        "transformer.ln_f.bias": ours.norm.bias,
        "lm_head.weight": ours.stem.word.weight,
    }
    for i in range(config.encoders):
        attention, mlp = ours.blocks[2 * i], ours.blocks[2 * i + 1]
        for kind in ("weight", "bias"):
            qkv = [getattr(getattr(attention.path, letter), kind) for letter in "QKV"]
            there = {
                "attn.c_attn": torch.cat(qkv),
                "attn.c_proj": getattr(attention.path.U, kind),
                "mlp.c_fc": getattr(mlp.path.W, kind),
                "mlp.c_proj": getattr(mlp.path.X, kind),
            }
            for name, tensor in there.items():
                state[f"transformer.h.{i}.{name}.{kind}"] = (
                    tensor.mT if tensor.ndim == 2 else tensor
                )
            state[f"transformer.h.{i}.ln_1.{kind}"] = getattr(attention.norm, kind)
            state[f"transformer.h.{i}.ln_2.{kind}"] = getattr(mlp.norm, kind)
    return loaded(theirs, state)


def bart(ours: EncoderDecoderTransformer) -> nn.Module:
    """transformers' BART with our weights; its positions start at row 2."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = ours.config
    theirs = BartForConditionalGeneration(
        BartConfig(
            vocab_size=config.n_vocab,
            max_position_embeddings=config.T,
            d_model=config.n,
            encoder_layers=config.encoders,
            decoder_layers=config.decoders,
            encoder_attention_heads=config.H,
            decoder_attention_heads=config.H,
            encoder_ffn_dim=config.mlp_width,
            decoder_ffn_dim=config.mlp_width,
            pad_token_id=config.pad,
        )
    )
    state: dict[str, Tensor] = {
        "model.shared.weight": ours.word.weight,
        "model.encoder.embed_tokens.weight": ours.word.weight,
        "model.decoder.embed_tokens.weight": ours.word.weight,
        "lm_head.weight": ours.word.weight,
        "final_logits_bias": torch.zeros(1, config.n_vocab),
    }
    stack = {
        "encoder": (("self_attn", "QKVU"), ("fc", "WX")),
        "decoder": (("self_attn", "QKVU"), ("encoder_attn", "QKVU"), ("fc", "WX")),
    }
    for side, kinds in stack.items():
        here = getattr(ours, side)
        position = torch.cat([torch.zeros(2, config.n), here.stem.position.weight])
        state[f"model.{side}.embed_positions.weight"] = position
        for kind in ("weight", "bias"):
            state[f"model.{side}.layernorm_embedding.{kind}"] = getattr(here.stem.norm, kind)
        for i, block in enumerate(here.blocks):
            name, letters = kinds[i % len(kinds)]
            prefix = f"model.{side}.layers.{i // len(kinds)}"
            state.update(_bart_block(prefix, name, letters, block))
    return loaded(theirs, state)


def _bart_block(prefix: str, name: str, letters: str, block: nn.Module) -> dict[str, Tensor]:
    there = dict(zip("QKVU", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True))
    state: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        for letter in letters:
            place = f"{name}.{there[letter]}" if name != "fc" else f"fc{1 + 'WX'.index(letter)}"
            state[f"{prefix}.{place}.{kind}"] = getattr(getattr(block.path, letter), kind)
        norm = "final_layer_norm" if name == "fc" else f"{name}_layer_norm"
        state[f"{prefix}.{norm}.{kind}"] = getattr(block.norm, kind)
    return state


def vit(ours: VisionTransformer) -> nn.Module:
    """transformers' ViT with our weights; its patch bias, which we lack, is 0."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ours.config
    theirs = ViTForImageClassification(
        ViTConfig(
            hidden_size=config.n,
            num_hidden_layers=config.encoders,
            num_attention_heads=config.H,
            intermediate_size=config.mlp_width,
            layer_norm_eps=config.epsilon,
            image_size=config.image_size,
            patch_size=config.patch,
            num_channels=config.channels,
            num_labels=config.n_out,
        )
    )
    state = {
        "vit.embeddings.cls_token": ours.stem.class_token[None, None],
        "vit.embeddings.position_embeddings": ours.stem.position.weight[None],
        "vit.embeddings.patch_embeddings.projection.weight": ours.stem.patch.weight,
        "vit.embeddings.patch_embeddings.projection.bias": torch.zeros(config.n),
    }
    there = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
    places = dict(zip(LETTERS, (*there, "mlp.fc1", "mlp.fc2"), strict=True))
    for kind in ("weight", "bias"):
        state[f"vit.layernorm.{kind}"] = getattr(ours.norm, kind)
        state[f"classifier.{kind}"] = getattr(ours.head.W, kind)
        for i in range(config.encoders):
            pair = ours.blocks[2 * i], ours.blocks[2 * i + 1]
            for block, letters, norm in zip(
                pair, ("QKVU", "WX"), ("layernorm_before", "layernorm_after"), strict=True
            ):
                state[f"vit.layers.{i}.{norm}.{kind}"] = getattr(block.norm, kind)
                for letter in letters:
                    name = f"vit.layers.{i}.{places[letter]}.{kind}"
                    state[name] = getattr(getattr(block.path, letter), kind)
    return loaded(theirs, state)


def loaded(theirs: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    theirs.load_state_dict({name: tensor.detach() for name, tensor in state.items()})
    return theirs.eval()


def dense_attention(
    path: nn.Module, s: Tensor, seen: Tensor, legal: Tensor, power: float
) -> Tensor:
    """r of one sample, head by head and query by query: [DYZ23] eq. (1.13)–(1.19)."""
    n, H = s.shape[-1], path.H
    C = n // H
    r = torch.zeros_like(s)
    for h in range(H):
        rows = slice(h * C, (h + 1) * C)
        for t in range(len(s)):
            q = path.Q.weight[rows] @ s[t]
            keys = [u for u in range(len(seen)) if legal[t, u]]
            score = torch.stack([q @ (path.K.weight[rows] @ seen[u]) for u in keys]) / C**power
            weight = score.exp() / score.exp().sum()
            v = sum(w * (path.V.weight[rows] @ seen[u]) for w, u in zip(weight, keys, strict=True))
            r[t] += path.U.weight[:, rows] @ v
    return r


def dense_norm(z: Tensor, epsilon: float) -> Tensor:
    """[DYZ23] eq. (1.10)."""
    mean = z.mean(-1, keepdim=True)
    return (z - mean) / ((z * z).mean(-1, keepdim=True) - mean * mean + epsilon).sqrt()
