"""A watch in transformers' Trainer.

    Trainer(..., callbacks=[WatchCallback(to="runs/a", every=50)])

The Trainer's own ``on_pre_optimizer_step`` comes after clipping, and at ``on_step_end`` gradients
are gone; the watch is attached to the optimizer that accelerate wraps, and sees both.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from orderone.core.errors import MissingPackageError
from orderone.probes.watch import Watch, watch

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingPackageError("transformers", needed_for="a callback of its Trainer") from error


class WatchCallback(TrainerCallback):
    """``orderone.watch`` from the beginning of training to its end; its settings are taken as
    given. What the Trainer logs is recorded too."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.watch: Watch | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        """Attach to torch's own optimizer: accelerate's wrapper has no hooks."""
        # A run that is resumed counts on from where it was; a new one drops nothing.
        resumed = {"start": state.global_step} if state.global_step else {}
        self.watch = watch(
            model,
            getattr(optimizer, "optimizer", optimizer),
            **{**resumed, "rank": args.process_index, **self._settings},
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Record the numbers among what was logged."""
        if self.watch is not None:
            self.watch.log({k: v for k, v in (logs or {}).items() if isinstance(v, int | float)})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach. After a training that failed, the watch is closed by ``close``."""
        self.close()

    def close(self) -> None:
        """Detach and write what is left; a second time does nothing."""
        attached, self.watch = self.watch, None
        if attached is not None:
            attached.close()
