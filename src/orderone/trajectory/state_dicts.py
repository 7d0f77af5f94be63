"""Which part of what a trainer saved are the weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.pickled import PickledTensor
from orderone.trajectory.safetensors_files import listed

# Where trainers put the weights among other things, first come first served.
_NESTS = (
    "model",
    "state_dict",
    "model_state_dict",
    "model_state",
    "module",
    "weights",
    "params",
    "net",
    "network",
)
_STEPS = ("global_step", "step", "iteration", "num_updates", "global_steps")
# Components of names that belong to an optimizer or a loop, in flattened dictionaries too.
_NOT_WEIGHTS = re.compile(
    r"(?:^|\.)(?:optim(?:izer)?s?(?:_states?|_state_dicts?)?|lr_schedulers?|schedulers?|grad_scaler"
    r"|scaler|rng(?:_states?)?|train(?:er|ing)?_state|dataloader|exp_avg(?:_sq)?|ema|loops)(?:\.|$)"
)
# Tables that some models save although nothing learns them.
_BUFFER = re.compile(
    r"(?:^|\.)(?:inv_freq|original_inv_freq|masked_bias|running_mean|running_var|freqs_cis"
    r"|num_batches_tracked|position_ids|token_type_ids|causal_mask|relative_position_index)$"
)
_MASK = re.compile(r"(?:attn|attention)\.bias$")
_DEPTH = 6


def is_state_name(name: str) -> bool:
    """Whether a flattened name is an optimizer's or a loop's."""
    return bool(_NOT_WEIGHTS.search(name))


def is_buffer(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the tensor is a table that is not learned; GPT-2's and NeoX's masks are 1×1×n×n."""
    mask = _MASK.search(name) and len(shape) == 4 and shape[:2] == (1, 1)
    return bool(_BUFFER.search(name) or mask)


def state_dict(path: Path, saved: object) -> dict[str, PickledTensor]:
    """The weights in what ``torch.save`` wrote, nested under 'model' and the like or not."""
    found = _find(saved, 0)
    if found is None:
        keys = list(map(str, cast("Mapping[Any, Any]", saved))) if _is_mapping(saved) else []
        what = f"keys {listed(keys)}" if keys else f"a {type(saved).__name__}"
        raise UnreadableError("unreadable", f"'{path.name}' holds no weights, but {what}")
    return found


def saved_step(saved: object) -> int | None:
    """The step that the file says it is of."""
    if not _is_mapping(saved):
        return None
    values = [cast("Mapping[Any, Any]", saved).get(key) for key in _STEPS]
    return next((v for v in values if type(v) is int and 0 <= v < 1 << 63), None)


def _find(saved: object, depth: int) -> dict[str, PickledTensor] | None:
    if isinstance(saved, (list, tuple)) and len(cast("list[object]", saved)) == 1:
        return _find(cast("list[object]", saved)[0], depth + 1) if depth < _DEPTH else None
    if not _is_mapping(saved) or depth > _DEPTH:
        return None
    entries = cast("Mapping[Any, Any]", saved)
    tensors = {str(k): v for k, v in entries.items() if isinstance(v, PickledTensor)}
    nests = [entries[key] for key in _NESTS if _is_mapping(entries.get(key))]
    for nest in nests:
        found = _find(nest, depth + 1)
        if found:
            return found
    return tensors or None


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)
