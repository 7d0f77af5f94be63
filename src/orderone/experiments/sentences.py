"""Sentences as batches of any model of words: by length, masked, cut at the model's limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, DataError, ModelError
from orderone.data.pieces import Pieces, Words, has_tokenizer
from orderone.probes.feeding import vocabulary_rows

LONGEST = 512
"""[MRGSS21] §4.1 cuts at 512 word pieces."""

TOKENS = 4096
"""Of a batch, padding included: a hundred sentences of usual length are one batch."""

_ROWS_UNUSED = 0.1
"""Share of the vocabulary that may have no word: models pad theirs to round numbers."""


@runtime_checkable
class Encoder(Protocol):
    """Sentences to tokens."""

    def __len__(self) -> int: ...

    def encode_many(self, sentences: Sequence[str], *, longest: int) -> list[list[int]]:
        """Ids of each sentence, cut."""
        ...

    def word(self, token: int) -> str:
        """How a token is spelt."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Batches for one model, and who can spell their tokens."""

    batches: tuple[dict[str, Tensor], ...] = field(repr=False)
    encoder: Encoder
    count: int


def sentence_batches(
    model: nn.Module,
    sentences: Sequence[str],
    *,
    folder: Path | None = None,
    longest: int = LONGEST,
    tokens: int = TOKENS,
) -> Sentences:
    """``sentences`` for ``model``, by the tokenizer in ``folder``.

    A model without one was trained on no text: it is given the sentences' own words.
    """
    rows = _rows(model)
    if folder is not None and not has_tokenizer(folder):
        raise DataError(
            f"no tokenizer in '{folder}'",
            expected="tokenizer.json beside the model's weights",
            do="name its folder with --tokenizer",
        )
    encoder = Words(sentences, size=rows) if folder is None else Pieces(folder)
    if folder is not None:
        _check_size(len(encoder), rows, folder)
    longest = min(longest, positions(model) or longest)
    if longest < 1 or tokens < 1:
        raise ConfigError(
            f"longest={longest}, tokens={tokens}", expected="both positive", do="raise them"
        )
    encoded = [ids for ids in encoder.encode_many(sentences, longest=longest) if ids]
    if not encoded:
        raise DataError("sentences without a token", expected="text", do="name another file")
    made = tuple(_arranged(model, each) for each in _by_length(encoded, tokens))
    return Sentences(batches=made, encoder=encoder, count=len(encoded))


def positions(model: nn.Module) -> int | None:
    """The longest sequence that a model takes; None where it has no limit.

    RoBERTa's positions begin after that of its [pad].
    """
    config: Any = getattr(model, "config", None)
    if hasattr(config, "kind"):
        return int(config.T)
    # T5's n_positions limits nothing: its positions are relative.
    relative = hasattr(config, "relative_attention_num_buckets")
    limits = [
        getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")
    ]
    known = [each for each in limits if isinstance(each, int) and each > 0]
    if relative or not known:
        return None
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and module.padding_idx is not None
        and "position" in name
    ]
    return min(known) - max(offsets, default=0)


def _rows(model: nn.Module) -> int:
    rows = vocabulary_rows(model)
    if rows is None:
        raise ModelError(
            f"a {type(model).__name__} without a word embedding",
            expected="a model of words",
            do="measure others in Python, with batches of their own",
        )
    return rows


def _check_size(size: int, rows: int, folder: Path) -> None:
    if size > rows or size < (1 - _ROWS_UNUSED) * rows:
        raise DataError(
            f"a tokenizer of {size} tokens in '{folder}' for a model with a vocabulary of {rows}",
            expected="the tokenizer that the model was trained with",
            do="name its folder with --tokenizer",
        )


def _by_length(encoded: list[list[int]], tokens: int) -> Iterable[list[list[int]]]:
    """Longest first: a batch's first sentence sets its width."""
    ranked = sorted(encoded, key=len, reverse=True)
    begin = 0
    while begin < len(ranked):
        size = max(1, tokens // len(ranked[begin]))
        yield ranked[begin : begin + size]
        begin += size


def _arranged(model: nn.Module, rows: list[list[int]]) -> dict[str, Tensor]:
    config: Any = getattr(model, "config", None)
    pad = getattr(config, "pad", None) if hasattr(config, "kind") else _pad(config)
    width = len(rows[0])
    real = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    filled = [row + [pad or 0] * (width - len(row)) for row in rows]
    words = torch.tensor(filled)
    if hasattr(config, "kind"):
        if config.kind == "encoder-decoder":
            return {"source": words, "source_real": real, "target": words, "target_real": real}
        return {"tokens": words, "real": real}
    batch = {"input_ids": words, "attention_mask": real.long()}
    if not getattr(config, "is_encoder_decoder", False):
        return batch
    return batch | {
        "decoder_input_ids": _shifted(words, config),
        "decoder_attention_mask": real.long(),
    }


def _shifted(words: Tensor, config: Any) -> Tensor:
    """The same sentence as the decoder is taught it, behind its start."""
    start = getattr(config, "decoder_start_token_id", None)
    first = torch.full_like(words[:, :1], start if isinstance(start, int) else _pad(config))
    return torch.cat([first, words[:, :-1]], dim=1)


def _pad(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    pad = getattr(text, "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else 0
