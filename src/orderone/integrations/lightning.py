"""A watch in Lightning's Trainer.

    Trainer(..., callbacks=[WatchCallback(to="runs/a", every=50)])

Lightning runs forward, backward and clipping in a closure inside ``optimizer.step``, and its own
``on_before_optimizer_step`` comes before clipping; the watch sees both sides of it.
"""

from __future__ import annotations

from typing import Any

from orderone.core.errors import MissingPackageError, ModelError
from orderone.probes.watch import Watch, watch

try:
    from lightning.pytorch import Callback  # pyright: ignore
except ImportError as error:
    raise MissingPackageError("lightning", needed_for="a callback of its Trainer") from error


class WatchCallback(Callback):  # pyright: ignore[reportUntypedBaseClass]
    """``orderone.watch`` from the beginning of training to its end; its settings are taken as
    given. The loss of each step is recorded too.

    optimizer    which of the module's optimizers is watched, where it has several
    """

    def __init__(self, *, optimizer: int | None = None, **settings: Any) -> None:
        super().__init__()
        self._which = optimizer
        self._settings = settings
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the optimizer itself."""
        # A run that is resumed counts on from where it was; a new one drops nothing.
        resumed = {"start": trainer.global_step} if trainer.global_step else {}
        self.watch = watch(
            pl_module,
            self._optimizer(trainer.optimizers),
            **{**resumed, "rank": trainer.global_rank, **self._settings},
        )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss; while gradients are accumulated, of the step's last batch."""
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if self.watch is not None and stepped and isinstance(outputs, dict) and "loss" in outputs:
            # Lightning hands out the loss divided for accumulation.
            self.watch.log(loss=outputs["loss"] * trainer.accumulate_grad_batches)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Detach, and write what is left."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach, and write what is left: the run's result says that it failed."""
        attached, self.watch = self.watch, None
        if attached is not None:
            attached.__exit__(type(exception), exception, exception.__traceback__)

    def close(self) -> None:
        """Detach and write what is left; a second time does nothing."""
        attached, self.watch = self.watch, None
        if attached is not None:
            attached.close()

    def _optimizer(self, optimizers: Any) -> Any:
        if self._which is None and len(optimizers) != 1:
            raise ModelError(
                f"a module with {len(optimizers)} optimizers",
                expected="one, or the number of the one to watch",
                do="give optimizer=0, and a callback to each that you want watched",
            )
        return optimizers[self._which or 0]
