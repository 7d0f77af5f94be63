"""Hidden states of any model as they are computed: the stack's input, and z after every block.

By hooks and one at a time, so that a comparison can drop each as soon as it is made. A block is
a member of a list of blocks, as a parameter's name shows it: transformers' layers in encoders,
decoders and both, timm's, and our own, of which every residual path is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from orderone.core.errors import ModelError
from orderone.core.outputs import main_tensor
from orderone.core.parameter_names import block_path, clean_name, is_norm

Keep = Callable[[str, str, Tensor], None]
"""What is told (tower, layer, hidden states); the tower is "" where there is only one."""


@dataclass(kw_only=True)
class _Tower:
    """One list of blocks: how many of them have run in this pass."""

    name: str
    run: int = 0
    closed: bool = field(default=False)


@contextmanager
def hidden_states(model: nn.Module, keep: Keep) -> Generator[None]:
    """``keep`` gets every hidden state of each forward pass within; the hooks are gone afterwards.

    Layer "0" is what the first block is given, "1" … what the blocks give, in the order in which
    they run (ALBERT runs one many times), and "norm" what a layer norm after the last one gives.
    """
    modules = {clean_name(name): module for name, module in model.named_modules()}
    towers = {path: _Tower(name=name) for path, name in tower_names(model).items()}
    blocks = _blocks(model)
    with ExitStack() as undo:
        for name, module in modules.items():
            tower = towers.get(_owner(name)) if name in blocks else None
            if tower is not None:
                enter, leave = _around_block(tower, keep)
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                undo.callback(before.remove)
                undo.callback(module.register_forward_hook(leave).remove)
            elif closing := _closed_tower(name, towers):
                after = module.register_forward_hook(_after_norm(closing, keep))
                undo.callback(after.remove)
        undo.callback(model.register_forward_pre_hook(_restart(list(towers.values()))).remove)
        yield


def tower_names(model: nn.Module) -> dict[str, str]:
    """Name of each list of blocks by its path: "" for one alone, else what tells them apart."""
    paths = list(dict.fromkeys(_owner(name) for name in _blocks(model)))
    if not paths:
        raise ModelError(
            f"no hidden states in a {type(model).__name__}",
            expected="a list of blocks, such as model.layers",
            do="give a transformer",
        )
    if len(paths) == 1:
        return {paths[0]: ""}
    parts = [path.split(".") for path in paths]
    shared = {part for part in parts[0] if all(part in each for each in parts)}
    return {
        path: ".".join(part for part in each if part not in shared) or path
        for path, each in zip(paths, parts, strict=True)
    }


def real_rows(
    hidden: Float[Tensor, "*bt n"],
    real: Bool[Tensor, "b t"] | None,
    *,
    time_first: bool = False,
) -> tuple[Float[Tensor, "tokens n"], list[int]]:
    """Vectors of real tokens, and how many each sentence has."""
    if time_first:
        hidden = hidden.transpose(0, 1)
    if real is None:
        each = hidden[0].numel() // hidden.shape[-1]
        return hidden.reshape(-1, hidden.shape[-1]), [each] * len(hidden)
    if hidden.shape[:2] != real.shape:
        raise ModelError(
            f"hidden states of shape {tuple(hidden.shape)} for a mask of {tuple(real.shape)}",
            expected="one vector a token",
            do="give batches without padding, and no mask",
        )
    return hidden[real], real.sum(dim=1).tolist()


def is_time_first(model: nn.Module) -> bool:
    """XLNet alone of transformers' models has time before the batch inside."""
    return getattr(getattr(model, "config", None), "model_type", None) == "xlnet"


def _blocks(model: nn.Module) -> set[str]:
    """Paths of members of lists of blocks; a bare layer of a list, such as a Linear, is none."""
    modules = {clean_name(name): module for name, module in model.named_modules()}
    paths = {block_path(name) for name, _ in model.named_parameters()}
    names = [".".join(path) for path in paths if path is not None]
    found = {name for name in names if name in modules and any(modules[name].children())}
    return {name for name in modules if name in found}


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _closed_tower(name: str, towers: dict[str, _Tower]) -> _Tower | None:
    """The tower that a norm stands beside, as in ``encoder.norm`` beside ``encoder.layers``."""
    owner, _, leaf = name.rpartition(".")
    if not leaf or not is_norm(f"{name}.weight") or re.search("emb|pre", leaf):
        return None
    beside = [tower for path, tower in towers.items() if _owner(path) == owner]
    return beside[0] if len(beside) == 1 else None


def _around_block(tower: _Tower, keep: Keep) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(module: nn.Module, arguments: Any, keywords: Any) -> None:
        del module
        if tower.run == 0:
            given = keywords.get("hidden_states")
            start = given if isinstance(given, Tensor) else main_tensor((arguments, keywords))
            if start is not None:
                keep(tower.name, "0", start.detach())

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        del arguments
        tower.run += 1
        value = main_tensor(output)
        if value is None:
            raise ModelError(
                f"a block ({type(module).__name__}) without a tensor in its output",
                expected="its hidden states",
                do="give a model whose blocks return them",
            )
        keep(tower.name, str(tower.run), value.detach())

    return enter, leave


def _after_norm(tower: _Tower, keep: Keep) -> Callable[..., None]:
    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        del module, arguments
        value = main_tensor(output)
        # One that runs before the blocks, as BART's layernorm_embedding, closes nothing.
        if tower.run and not tower.closed and value is not None:
            tower.closed = True
            keep(tower.name, "norm", value.detach())

    return leave


def _restart(towers: Iterable[_Tower]) -> Callable[..., None]:
    def enter(*_: object) -> None:
        for tower in towers:
            tower.run, tower.closed = 0, False

    return enter
