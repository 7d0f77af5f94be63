"""A batch as a model takes it, and which of its tokens are real, whatever the batch came as."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from orderone.core.errors import DataError, ModelError

_TARGETS = frozenset({"labels", "targets"})
"""What a batch holds beside a model's inputs; a forward pass without a loss has no use for it."""

_POSITIONAL = "inputs"


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Arguments of one forward pass; a mask is None where every token is real."""

    arguments: tuple[Tensor, ...]
    keywords: Mapping[str, Any]
    tokens: Int[Tensor, "b t"] | None
    """Of the model, or of the decoder where there are two stacks."""
    real: Bool[Tensor, "b t"] | None
    source_real: Bool[Tensor, "b k"] | None
    """Of the encoder beside a decoder."""

    @property
    def sentences(self) -> int:
        given = [*self.arguments, *self.keywords.values()]
        return next(len(each) for each in given if isinstance(each, Tensor))

    def of_tower(self, tower: str) -> Bool[Tensor, "b _"] | None:
        """The mask of the encoder, or of the decoder or only stack."""
        return self.source_real if tower == "encoder" and self.has_source else self.real

    @property
    def has_source(self) -> bool:
        return any(name in self.keywords for name in ("source", "decoder_input_ids"))


def feed(model: nn.Module, batch: object) -> Feed:
    """``batch`` for ``model``: a tensor, a mapping of keyword arguments, (inputs, labels), or a
    batch of the data room."""
    parameter = next(model.parameters(), None)
    device = None if parameter is None else parameter.device
    dtype = torch.float32 if parameter is None else parameter.dtype

    def moved(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to(device, dtype) if x.is_floating_point() else x.to(device)

    named = {name: moved(value) for name, value in _named(model, batch).items()}
    positional = (named.pop(_POSITIONAL),) if _POSITIONAL in named else ()
    found = Feed(
        arguments=positional,
        keywords=named,
        tokens=_tokens(positional, named),
        real=_mask(named, "target_real", "decoder_attention_mask")
        if "source" in named or "decoder_input_ids" in named
        else _mask(named, "real", "attention_mask"),
        source_real=_mask(named, "source_real", "attention_mask"),
    )
    _check(model, found)
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel: a probe averages no gradients."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return cast("nn.Module", model.module)
    return model


@contextmanager
def as_deployed(model: nn.Module) -> Generator[None]:
    """Dropout off, no graph, no cache of keys; every module's mode is restored."""
    training = [(module, module.training) for module in model.modules()]
    config: Any = getattr(model, "config", None)
    cache = getattr(config, "use_cache", None)
    with ExitStack() as undo:
        undo.callback(_restore_modes, training)
        model.eval()
        if isinstance(cache, bool):
            undo.callback(setattr, config, "use_cache", cache)
            config.use_cache = False
        undo.enter_context(torch.no_grad())
        yield


def _restore_modes(training: list[tuple[nn.Module, bool]]) -> None:
    for module, mode in training:
        module.training = mode


def _named(model: nn.Module, batch: object) -> dict[str, Any]:
    if isinstance(batch, Tensor):
        return {_POSITIONAL: batch}
    if isinstance(batch, Mapping):
        given = cast("Mapping[str, Any]", batch)
        return {name: value for name, value in given.items() if name not in _TARGETS}
    if hasattr(batch, "tokens") and hasattr(batch, "real"):
        return _from_sentences(model, cast("Any", batch))
    if hasattr(batch, "source") and hasattr(batch, "source_real"):
        return _from_pairs(model, cast("Any", batch))
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor):
        return {_POSITIONAL: batch[0]}
    raise DataError(
        f"a batch that is a {type(batch).__name__}",
        expected="a tensor, a mapping of the model's arguments, or a batch of orderone.data",
        do="arrange it as the model takes it",
    )


def _from_sentences(model: nn.Module, batch: Any) -> dict[str, Any]:
    accepted = inspect.signature(model.forward).parameters
    if "attention_mask" in accepted:
        return {"input_ids": batch.tokens, "attention_mask": batch.real.long()}
    if "real" in accepted:
        return {"tokens": batch.tokens, "real": batch.real}
    if bool(batch.real.all()):
        return {_POSITIONAL: batch.tokens}
    raise ModelError(
        f"padded sentences for a {type(model).__name__}, which takes no mask",
        expected="an argument 'attention_mask' or 'real'",
        do="give batches of one length, or a model that masks padding",
    )


def _from_pairs(model: nn.Module, batch: Any) -> dict[str, Any]:
    if "attention_mask" in inspect.signature(model.forward).parameters:
        return {
            "input_ids": batch.source,
            "attention_mask": batch.source_real.long(),
            "decoder_input_ids": batch.target_in,
            "decoder_attention_mask": batch.target_real.long(),
        }
    names = {"target": "target_in"}
    wanted = ("source", "target", "source_real", "target_real")
    return {name: getattr(batch, names.get(name, name)) for name in wanted}


def _tokens(positional: tuple[Tensor, ...], named: Mapping[str, Any]) -> Tensor | None:
    names = ("decoder_input_ids", "target", "tokens", "input_ids")
    given = [*(named[name] for name in names if name in named), *positional]
    for each in given:
        if isinstance(each, Tensor) and each.ndim == 2 and not each.is_floating_point():
            return each
    return None


def _mask(named: Mapping[str, Any], *names: str) -> Bool[Tensor, "b t"] | None:
    for name in names:
        value = named.get(name)
        if isinstance(value, Tensor) and value.ndim == 2:
            return value.bool()
    return None


def _check(model: nn.Module, found: Feed) -> None:
    """Words must be in the vocabulary, and something must be real."""
    for mask in (found.real, found.source_real):
        if mask is not None and not bool(mask.any()):
            raise DataError(
                "a batch without a real token", expected="text", do="leave empty batches out"
            )
    words = [
        value
        for name, value in [*found.keywords.items(), *((_POSITIONAL, x) for x in found.arguments)]
        if name in ("input_ids", "decoder_input_ids", "tokens", "source", "target", _POSITIONAL)
        and isinstance(value, Tensor)
        and not value.is_floating_point()
        and value.numel()
    ]
    rows = vocabulary_rows(model)
    largest = max((int(each.max()) for each in words), default=-1)
    if rows is not None and largest >= rows:
        raise DataError(
            f"token {largest} for a model with a vocabulary of {rows}",
            expected=f"tokens below {rows}",
            do="use the tokenizer that the model was trained with",
        )


def vocabulary_rows(model: nn.Module) -> int | None:
    """Rows of the word embedding; None where no embedding is known to be that."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "n_vocab"):
        return int(config.n_vocab)
    asked = getattr(model, "get_input_embeddings", None)
    try:
        embedding = asked() if callable(asked) else None
    except (NotImplementedError, AttributeError):
        embedding = None
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None
