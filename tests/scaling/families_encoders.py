"""Encoders and encoder–decoders of transformers, of words, images and sound."""

from __future__ import annotations

from typing import Any

from tests.scaling.family import BERT, LM_HEAD, Expected, Family, under

T5: dict[str, Any] = {
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 80,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 97,
    "pad_token_id": 0,
}
XLNET: dict[str, Any] = {
    "d_model": 48,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 80,
    "vocab_size": 97,
}
BART: dict[str, Any] = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "vocab_size": 97,
    "pad_token_id": 1,
}
VIT = {
    **{key: BERT[key] for key in list(BERT)[:4]},
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
WHISPER = BART | {
    "num_mel_bins": 6,
    "max_source_positions": 20,
    "max_target_positions": 22,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
BERT_BODY: Expected = {
    "embeddings.word_embeddings.weight": ("word", 1, 48),
    "embeddings.position_embeddings.weight": ("position", 1, 48),
    "embeddings.token_type_embeddings.weight": ("position", 1, 48),
    "embeddings.LayerNorm.weight": ("gain", 1, 48),
    "encoder.layer.0.attention.self.query.weight": ("Q", 48, 48),
    "encoder.layer.0.attention.self.key.weight": ("K", 48, 48),
    "encoder.layer.0.attention.self.value.weight": ("V", 48, 48),
    "encoder.layer.0.attention.output.dense.weight": ("U", 48, 48),
    "encoder.layer.1.intermediate.dense.weight": ("W", 48, 80),
    "encoder.layer.1.intermediate.dense.bias": ("bias", 1, 80),
    "encoder.layer.1.output.dense.weight": ("X", 80, 48),
}
BERT_POOLER: Expected = {"pooler.dense.weight": ("dense", 48, 48)}
BERT_WORDS: Expected = {
    "cls.predictions.transform.dense.weight": ("dense", 48, 48),
    "cls.predictions.bias": ("bias", 1, 97),
}
T5_BODY: Expected = {
    "shared.weight": ("word", 1, 48),
    "encoder.block.0.layer.0.SelfAttention.q.weight": ("Q", 48, 40),
    "encoder.block.0.layer.0.SelfAttention.o.weight": ("U", 40, 48),
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (
        "relative-bias",
        1,
        4,
    ),
    "decoder.block.1.layer.1.EncDecAttention.k.weight": ("K", 48, 40),
    "decoder.block.1.layer.2.DenseReluDense.wo.weight": ("X", 80, 48),
    "decoder.final_layer_norm.weight": ("gain", 1, 48),
}
BART_BODY: Expected = {
    "model.shared.weight": ("word", 1, 48),
    "model.encoder.embed_positions.weight": ("position", 1, 48),
    "model.encoder.layers.0.self_attn.q_proj.weight": ("Q", 48, 48),
    "model.decoder.layers.0.encoder_attn.v_proj.weight": ("V", 48, 48),
    "model.decoder.layers.0.encoder_attn.out_proj.weight": ("U", 48, 48),
    "model.decoder.layers.1.fc1.weight": ("W", 48, 80),
    "model.decoder.layers.1.fc2.weight": ("X", 80, 48),
    "model.decoder.layernorm_embedding.bias": ("bias", 1, 48),
}
VIT_BODY: Expected = {
    "embeddings.cls_token": ("class-token", 1, 48),
    "embeddings.position_embeddings": ("position", 1, 48),
    "embeddings.patch_embeddings.projection.weight": ("patch", 48, 48),
    "layers.0.attention.q_proj.weight": ("Q", 48, 48),
    "layers.0.attention.o_proj.weight": ("U", 48, 48),
    "layers.1.mlp.fc1.weight": ("W", 48, 80),
    "layers.1.mlp.fc2.weight": ("X", 80, 48),
}

ENCODERS = {
    "bert-words": Family(
        "BertForMaskedLM",
        "BertConfig",
        BERT,
        under("bert", BERT_BODY) | BERT_WORDS,
        tied="cls.predictions.decoder",
        heads=("cls.predictions.bias",),
        zero_rows={"bert.embeddings.word_embeddings.weight": 0},
    ),
    "bert-pretraining": Family(
        "BertForPreTraining",
        "BertConfig",
        BERT,
        under("bert", BERT_BODY | BERT_POOLER)
        | BERT_WORDS
        | {"cls.seq_relationship.weight": ("head", 48, 2)},
        tied="cls.predictions.decoder",
        heads=("cls.predictions.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    ),
    "bert-classes": Family(
        "BertForSequenceClassification",
        "BertConfig",
        BERT | {"num_labels": 5},
        under("bert", BERT_BODY | BERT_POOLER) | {"classifier.weight": ("head", 48, 5)},
        heads=("classifier.weight", "classifier.bias"),
    ),
    "bert": Family("BertModel", "BertConfig", BERT, BERT_BODY | BERT_POOLER),
    "roberta-words": Family(
        "RobertaForMaskedLM",
        "RobertaConfig",
        BERT,
        under("roberta", BERT_BODY) | {"lm_head.dense.weight": ("dense", 48, 48)},
        tied="lm_head.decoder",
        heads=("lm_head.bias",),
        zero_rows={
            "roberta.embeddings.word_embeddings.weight": 1,
            "roberta.embeddings.position_embeddings.weight": 1,
        },
    ),
    "roberta-classes": Family(
        "RobertaForSequenceClassification",
        "RobertaConfig",
        BERT | {"num_labels": 5},
        under("roberta", BERT_BODY)
        | {
            "classifier.dense.weight": ("dense", 48, 48),
            "classifier.out_proj.weight": ("head", 48, 5),
        },
        heads=("classifier.out_proj.weight", "classifier.out_proj.bias"),
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        T5,
        T5_BODY | {"encoder.block.1.layer.1.DenseReluDense.wi.weight": ("W", 48, 80)},
        tied="lm_head",
    ),
    "t5-gated-untied": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        T5_BODY
        | LM_HEAD
        | {
            "encoder.block.1.layer.1.DenseReluDense.wi_0.weight": ("gate", 48, 80),
            "encoder.block.1.layer.1.DenseReluDense.wi_1.weight": ("W", 48, 80),
        },
        heads=("lm_head.weight",),
    ),
    "xlnet": Family(
        "XLNetLMHeadModel",
        "XLNetConfig",
        XLNET,
        {
            "transformer.mask_emb": ("word", 1, 48),
            "transformer.word_embedding.weight": ("word", 1, 48),
            "transformer.layer.0.rel_attn.q": ("Q", 48, 48),
            "transformer.layer.0.rel_attn.k": ("K", 48, 48),
            "transformer.layer.0.rel_attn.r": ("K", 48, 48),
            "transformer.layer.0.rel_attn.v": ("V", 48, 48),
            "transformer.layer.0.rel_attn.o": ("U", 48, 48),
            "transformer.layer.0.rel_attn.r_w_bias": ("relative-bias", 1, 48),
            "transformer.layer.0.rel_attn.seg_embed": ("relative-bias", 1, 48),
            "transformer.layer.1.ff.layer_1.weight": ("W", 48, 80),
            "transformer.layer.1.ff.layer_2.weight": ("X", 80, 48),
        },
        tied="lm_loss",
        heads=("lm_loss.bias",),
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        "BartConfig",
        BART,
        BART_BODY,
        tied="lm_head",
        zero_rows={"model.shared.weight": 1},
    ),
    "bart-classes": Family(
        "BartForSequenceClassification",
        "BartConfig",
        BART | {"num_labels": 5},
        BART_BODY
        | {
            "classification_head.dense.weight": ("dense", 48, 48),
            "classification_head.out_proj.weight": ("head", 48, 5),
        },
        heads=("classification_head.out_proj.weight", "classification_head.out_proj.bias"),
    ),
    "vit": Family(
        "ViTModel", "ViTConfig", VIT, VIT_BODY | {"pooler.dense.weight": ("dense", 48, 48)}
    ),
    "vit-classes": Family(
        "ViTForImageClassification",
        "ViTConfig",
        VIT,
        under("vit", VIT_BODY) | {"classifier.weight": ("head", 48, 5)},
        heads=("classifier.weight", "classifier.bias"),
    ),
    "swin": Family(
        "SwinForImageClassification",
        "SwinConfig",
        SWIN,
        {
            "swin.embeddings.patch_embeddings.projection.weight": ("patch", 48, 8),
            "swin.encoder.layers.0.blocks.0.attention.q_proj.weight": ("Q", 8, 8),
            "swin.encoder.layers.1.blocks.0.mlp.fc1.weight": ("W", 16, 64),
            "swin.encoder.layers.0.downsample.reduction.weight": ("dense", 32, 16),
            "classifier.weight": ("head", 16, 5),
        },
        heads=("classifier.weight", "classifier.bias"),
        n=16,
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        {
            "model.encoder.conv1.weight": ("convolution", 18, 48),
            "model.encoder.conv2.weight": ("convolution", 144, 48),
            "model.encoder.embed_positions.weight": ("position", 1, 48),
            "model.decoder.embed_tokens.weight": ("word", 1, 48),
            "model.decoder.embed_positions.weight": ("position", 1, 48),
            "model.decoder.layers.0.encoder_attn.k_proj.weight": ("K", 48, 48),
            "model.decoder.layers.1.fc2.weight": ("X", 80, 48),
        },
        tied="proj_out",
    ),
    "modernbert": Family(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**BERT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"cls_token_id": 1, "sep_token_id": 2},
        {
            "model.layers.0.attn.Wqkv.weight": ("qkv", 48, 48),
            "model.layers.0.mlp.Wi.weight": ("W", 48, 80),
            "head.dense.weight": ("dense", 48, 48),
        },
        tied="decoder",
        heads=("decoder.bias",),
    ),
}
