"""Compiles one model of each kind into a single graph; prints how far its gradients are, as JSON.

A program of its own: the shape checker that the tests install around every function is not
something to compile, and users do not have it.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor

from tests.models.reference import encoder_decoder, images, language, vision, words


def gradients(model: Any, given: tuple[Tensor, ...]) -> dict[str, Tensor]:
    model.zero_grad()
    model(*given).square().mean().backward()
    return {name.removeprefix("_orig_mod."): p.grad for name, p in model.named_parameters()}


def deviation(model: Any, given: tuple[Tensor, ...]) -> float:
    """The largest difference of a gradient, relative to the largest gradient."""
    expected = gradients(model, given)
    found = gradients(torch.compile(model, backend="aot_eager", fullgraph=True), given)
    most = max(gradient.abs().max() for gradient in expected.values())
    return max(((found[name] - expected[name]).abs().max() / most).item() for name in expected)


def main() -> None:
    torch.set_num_threads(1)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[0, 8:] = False
    checkpointed = language()
    checkpointed.gradient_checkpointing = True
    sys.stdout.write(
        json.dumps(
            {
                "language": deviation(language(bias=True), (words(2, 12),)),
                "pads": deviation(language(affine=True), (words(2, 12), real)),
                "zero mask": deviation(language(mask="zero"), (words(2, 12),)),
                "checkpointed": deviation(checkpointed, (words(2, 12),)),
                "vision": deviation(vision(stem="class-token"), (images(2, 3, 16, 16),)),
                "encoder-decoder": deviation(encoder_decoder(), (words(2, 11), words(2, 9))),
            }
        )
    )


if __name__ == "__main__":
    main()
