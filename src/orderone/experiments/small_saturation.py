"""Saturation of a small language model on development sentences, [MRGSS21] §4.1, App. A."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from orderone.experiments.small_models import TrainedModel
from orderone.probes.saturation import Level, Saturation, saturation

_BATCH = 50


def development_batches(model: TrainedModel, count: int) -> Iterator[dict[str, Tensor]]:
    """The first ``count`` development sentences as the model was trained on them.

    That is without what follows them or, as coded, with padding as a word like others.
    """
    split = model.text.validation.first(count)
    as_coded = model.chosen.mask == "zero"
    for begin in range(0, len(split), _BATCH):
        lengths = split.lengths[begin : begin + _BATCH]
        room = split.tokens.shape[1] if as_coded else int(lengths.max())
        tokens = torch.from_numpy(split.tokens[begin : begin + _BATCH, :room].astype(np.int64))
        real = torch.from_numpy(np.arange(room) < lengths[:, None])
        yield {"tokens": tokens} if as_coded else {"tokens": tokens, "real": real}


def small_saturation(model: TrainedModel, count: int) -> Saturation:
    """Of the trained model by layer; ``random`` is the model before training."""
    batches = list(development_batches(model, count))
    before = saturation(model.initial, batches)
    return replace(saturation(model.model, batches), random=before.layers)


def last_level(found: Saturation) -> Level:
    """Of what the head is given."""
    return found.layers[-1]
