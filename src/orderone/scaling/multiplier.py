"""The output multiplier of a tied head, applied to any model by a hook on the head's module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from orderone.core.errors import ModelError
from orderone.scaling.matching import bare, module_of

# Multipliers that transformers' models apply by themselves, by their config's ``model_type``.
_SCALED_BY_WIDTH = {"umt5", "switch_transformers", "udop"}
_TIMES_LOGIT_SCALE = {"cohere", "cohere2", "cohere2_moe", "cohere_compass"}
_TIMES_LOGITS_SCALING = {"hyperclovax"}
_SETTINGS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "dim_model_base")


class InputMultiplier:
    """Forward pre-hook: multiplies what its module is given.

    On a head's input rather than its output: a bias of the head is not multiplied, and the n
    features are fewer than the outputs. A class of its own, so that a model which carries it can
    be copied and pickled.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not inputs or not isinstance(inputs[0], Tensor):
            raise ModelError(
                f"{type(module).__name__} called without a tensor in first place",
                expected="the head to be given its features as its first argument",
                do="pass them by position",
            )
        return (self.factor * inputs[0], *inputs[1:])


def install_(model: nn.Module, head: str, total: float) -> None:
    """The head's logits are multiplied by ``total`` in all, what the model does itself included.

    Again is once: a multiplier that a plan installed before is replaced.
    """
    module = module_of(model, head)
    remove_(model)
    factor = total / own_multiplier(model, head)
    if abs(factor - 1) > 1e-12:
        module.register_forward_pre_hook(InputMultiplier(factor))


def remove_(model: nn.Module) -> None:
    """Takes off every multiplier that a plan installed."""
    for module in model.modules():
        # torch lists a module's hooks nowhere else.
        hooks = module._forward_pre_hooks  # pyright: ignore[reportPrivateUsage]
        for key in [key for key, hook in hooks.items() if isinstance(hook, InputMultiplier)]:
            del hooks[key]


def own_multiplier(model: nn.Module, head: str) -> float:
    """What the model itself multiplies its tied head's logits by.

    Our heads carry it; of transformers' models the configuration knows. A configuration that has
    such a setting in a model we do not know is refused: it could be a factor or a divisor.
    """
    ours = getattr(module_of(model, head), "output_multiplier", None)
    if isinstance(ours, float | int):
        return float(ours)
    config = getattr(bare(model), "config", None)
    text = getattr(config, "text_config", None)
    return _configured(config if text is None else text)


def _configured(config: Any) -> float:
    kind = str(getattr(config, "model_type", ""))
    if kind in _SCALED_BY_WIDTH or getattr(config, "scale_decoder_outputs", False):
        return float(config.d_model) ** -0.5
    if kind in _TIMES_LOGIT_SCALE:
        return _number(config, "logit_scale")
    if kind in _TIMES_LOGITS_SCALING:
        return _number(config, "logits_scaling")
    if kind.startswith("granite"):
        return 1 / _number(config, "logits_scaling")
    if kind == "falcon_h1":
        return _number(config, "lm_head_multiplier")
    for setting in _SETTINGS:
        if _number(config, setting) != 1:
            raise ModelError(
                f"{setting} = {getattr(config, setting)} in the configuration of '{kind}'",
                expected="a model whose own rescaling of a tied head is known",
                do="untie the head, or set it to 1",
            )
    return 1.0


def _number(config: Any, setting: str) -> float:
    value = getattr(config, setting, None)
    return 1.0 if value is None else float(value)
