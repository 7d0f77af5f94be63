"""Measurements on given batches, for a slower clock than a step's: attention and preactivations.

largest_logit        max of Ω̃ over legal pairs, by attention
attention_entropy    −Σ Ω log Ω of a row in nats, mean over the rows that may look somewhere
attended_positions   weights of a row above 1e-5, [MRGSS21] §4.3, of the network as it is (c = 1)
preactivation        r.m.s. of the output of each module that owns a matrix
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.core.record import Record
from orderone.probes.coordinates import evaluating, forward_signals, rms

_ATTENDED = 1e-5
_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """What to run, and how often: ``Probes(batches=[inputs], every=1000)``."""

    batches: Sequence[Any]
    """Each is handed to ``forward``; records are means over them, and the maximum of logits."""
    every: int = 1000
    forward: Callable[[nn.Module, Any], object] | None = None
    """How the model is called; ``model(batch)``, or ``model(**batch)`` of a mapping."""

    def records(self, model: nn.Module, step: int) -> list[Record]:
        """One pass over the batches, without dropout; weights and modes are left as they were."""
        # Hooks inside a compiled model would have it compiled again.
        inner = getattr(model, "_orig_mod", model)
        found: dict[tuple[str, str], list[float]] = {}
        for batch in self.batches:
            for key, value in self._measured(inner, batch):
                found.setdefault(key, []).append(value)
        return [
            Record(step, name, _merged(name, values), {"module": where})
            for (name, where), values in found.items()
        ]

    def _measured(self, model: nn.Module, batch: Any) -> Iterator[tuple[tuple[str, str], float]]:
        attentions: list[str] = []
        for place, signal in forward_signals(model, lambda: self._run(model, batch)).items():
            if place.kind == "map":
                yield ("preactivation", place.where), rms(signal)
            if place.kind == "logits":
                attentions.append(place.where)
                if signal.numel():
                    yield ("largest_logit", place.where), float(signal.max())
        seen: list[tuple[Tensor, Tensor]] = []
        mode = WeightsMode(lambda Omega: seen.append((entropy(Omega), attended(Omega))))
        with evaluating(model), torch.no_grad(), mode:
            self._run(model, batch)  # the same attentions in the same order as above
        for where, (nats, positions) in zip(attentions, seen, strict=True):
            yield ("attention_entropy", where), float(nats)
            yield ("attended_positions", where), float(positions)

    def _run(self, model: nn.Module, batch: Any) -> object:
        if self.forward is not None:
            return self.forward(model, batch)
        return model(**batch) if isinstance(batch, Mapping) else model(batch)


def entropy(Omega: Float[Tensor, "*_ q k"]) -> Float[Tensor, ""]:
    """−Σ Ω log Ω, mean over rows that attend to anything; rows of padding are left out."""
    rows = -torch.special.xlogy(Omega, Omega).sum(-1)
    return rows[Omega.sum(-1) > 0].mean()


def attended(Omega: Float[Tensor, "*_ q k"]) -> Float[Tensor, ""]:
    """Mean number of a row's weights above 1e-5, [MRGSS21] §4.3."""
    counts = (Omega > _ATTENDED).sum(-1)
    return counts[Omega.sum(-1) > 0].double().mean()


class WeightsMode(TorchFunctionMode):
    """While active, ``keep`` gets Ω, (batch, heads, queries, keys), of every attention that runs.

    Torch's own functions are asked for Ω again without dropout, so that masks mean what they mean
    to them; the call itself goes on unchanged.
    """

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            self._keep(_fused(*args, **kwargs))
        elif func is functional.multi_head_attention_forward:
            asked = {"need_weights": True, "average_attn_weights": False, "training": False}
            self._keep(func(*args, **{**kwargs, **asked})[1])
        elif func in _SOFTMAX and result.ndim == 4:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            # No other softmax of a network has the shape of (batch, heads, queries, keys).
            if dim in (-1, 3):
                self._keep(result)
        return result


def _fused(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Ω = Ω 1: what attention makes of the unit matrix as values."""
    unit = torch.eye(key.shape[-2], dtype=value.dtype, device=value.device)
    names = ("attn_mask", "dropout_p", "is_causal")
    settings: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}
    values = unit.expand(*key.shape[:-2], *unit.shape)
    return functional.scaled_dot_product_attention(query, key, values, **settings)


def _merged(name: str, values: Sequence[float]) -> float:
    return max(values) if name == "largest_logit" else sum(values) / len(values)
