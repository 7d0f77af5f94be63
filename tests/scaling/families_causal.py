"""Causal language models of transformers."""

from __future__ import annotations

from typing import Any

from tests.scaling.family import BERT, LM_HEAD, Expected, Family

LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 10}
GPT2: dict[str, Any] = {
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 80,
    "vocab_size": 97,
    "n_positions": 24,
    "pad_token_id": 0,
}
FALCON: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 80,
    "vocab_size": 97,
}
GPT2_BODY: Expected = {
    "transformer.wte.weight": ("word", 1, 48),
    "transformer.wpe.weight": ("position", 1, 48),
    "transformer.h.0.attn.c_attn.weight": ("qkv", 48, 48),
    "transformer.h.0.attn.c_attn.bias": ("bias", 1, 48),
    "transformer.h.0.attn.c_proj.weight": ("U", 48, 48),
    "transformer.h.1.mlp.c_fc.weight": ("W", 48, 80),
    "transformer.h.1.mlp.c_proj.weight": ("X", 80, 48),
    "transformer.ln_f.weight": ("gain", 1, 48),
}
LLAMA_BODY: Expected = {
    "model.embed_tokens.weight": ("word", 1, 48),
    "model.layers.0.self_attn.q_proj.weight": ("Q", 48, 40),
    "model.layers.0.self_attn.k_proj.weight": ("K", 48, 20),
    "model.layers.0.self_attn.v_proj.weight": ("V", 48, 20),
    "model.layers.0.self_attn.o_proj.weight": ("U", 40, 48),
    "model.layers.1.mlp.gate_proj.weight": ("gate", 48, 80),
    "model.layers.1.mlp.up_proj.weight": ("W", 48, 80),
    "model.layers.1.mlp.down_proj.weight": ("X", 80, 48),
}
LLAMA_NORM: Expected = {"model.norm.weight": ("gain", 1, 48)}
HEAD_NORMS: Expected = {
    "model.layers.0.self_attn.q_norm.weight": ("gain", 1, 10),
    "model.layers.0.self_attn.k_norm.weight": ("gain", 1, 10),
}

CAUSAL = {
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", GPT2, GPT2_BODY, tied="lm_head"),
    "gpt2-classes": Family(
        "GPT2ForSequenceClassification",
        "GPT2Config",
        GPT2 | {"num_labels": 5},
        GPT2_BODY | {"score.weight": ("head", 48, 5)},
        heads=("score.weight",),
    ),
    "gpt2-cross": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2 | {"add_cross_attention": True},
        GPT2_BODY
        | {
            "transformer.h.0.crossattention.c_attn.weight": ("qkv", 48, 48),
            "transformer.h.0.crossattention.q_attn.weight": ("Q", 48, 48),
        },
        tied="lm_head",
    ),
    "llama": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA,
        LLAMA_BODY | LLAMA_NORM | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "llama-tied": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA | {"tie_word_embeddings": True},
        LLAMA_BODY,
        tied="lm_head",
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**BERT, "num_key_value_heads": 2},
        {
            "model.layers.0.self_attn.q_proj.weight": ("Q", 48, 48),
            "model.layers.0.self_attn.k_proj.weight": ("K", 48, 24),
            "model.layers.0.self_attn.k_proj.bias": ("bias", 1, 24),
        }
        | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        LLAMA,
        LLAMA_BODY | HEAD_NORMS | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "mistral": Family(
        "MistralForCausalLM",
        "MistralConfig",
        LLAMA,
        LLAMA_BODY | LLAMA_NORM | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "gemma": Family("GemmaForCausalLM", "GemmaConfig", LLAMA, LLAMA_BODY, tied="lm_head"),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2Config", LLAMA, LLAMA_BODY, tied="lm_head"),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        LLAMA,
        LLAMA_BODY | HEAD_NORMS,
        tied="lm_head",
    ),
    "gpt-neox": Family(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        BERT,
        {
            "gpt_neox.embed_in.weight": ("word", 1, 48),
            "gpt_neox.layers.0.attention.query_key_value.weight": ("qkv", 48, 48),
            "gpt_neox.layers.0.attention.query_key_value.bias": ("bias", 1, 48),
            "gpt_neox.layers.0.attention.dense.weight": ("U", 48, 48),
            "gpt_neox.layers.1.mlp.dense_h_to_4h.weight": ("W", 48, 80),
            "gpt_neox.layers.1.mlp.dense_4h_to_h.weight": ("X", 80, 48),
        }
        | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        "OlmoConfig",
        {**BERT, "num_key_value_heads": 2},
        {"model.layers.0.self_attn.v_proj.weight": ("V", 48, 24)} | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        "Olmo2Config",
        {**BERT, "num_key_value_heads": 2},
        {"model.layers.0.self_attn.k_norm.weight": ("gain", 1, 24)} | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "falcon-one-key": Family(
        "FalconForCausalLM",
        "FalconConfig",
        FALCON,
        {
            "transformer.h.0.self_attention.query_key_value.weight": ("qkv", 48, 48),
            "transformer.h.0.self_attention.dense.weight": ("U", 48, 48),
            "transformer.h.0.mlp.dense_h_to_4h.weight": ("W", 48, 80),
        },
        tied="lm_head",
    ),
    "falcon-grouped": Family(
        "FalconForCausalLM",
        "FalconConfig",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        {
            "transformer.h.0.self_attention.query_key_value.weight": ("qkv", 48, 48),
            "transformer.h.0.self_attention.query_key_value.bias": ("bias", 1, 48),
        },
        tied="lm_head",
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        {**BERT, "num_key_value_heads": 2, "pad_token_id": 0},
        {
            "model.layers.0.self_attn.qkv_proj.weight": ("qkv", 48, 48),
            "model.layers.0.mlp.gate_up_proj.weight": ("W", 48, 80),
            "model.layers.0.mlp.down_proj.weight": ("X", 80, 48),
        }
        | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        LLAMA | {"num_local_experts": 3},
        {
            "model.layers.0.mlp.gate.weight": ("dense", 48, 3),
            "model.layers.0.mlp.experts.gate_up_proj": ("W", 48, 80),
            "model.layers.0.mlp.experts.down_proj": ("X", 80, 48),
        }
        | LM_HEAD,
        heads=("lm_head.weight",),
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        LLAMA | {"num_local_experts": 3},
        {
            "model.layers.0.self_attn.sinks": ("relative-bias", 1, 4),
            "model.layers.0.mlp.experts.gate_up_proj": ("W", 48, 80),
            "model.layers.0.mlp.experts.gate_up_proj_bias": ("bias", 1, 80),
            "model.layers.0.mlp.experts.down_proj": ("X", 80, 48),
        }
        | LM_HEAD,
        heads=("lm_head.weight",),
    ),
}
