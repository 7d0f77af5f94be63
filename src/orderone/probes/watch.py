"""A training run watched from its optimizer's own step: norms, steps and directions by group.

    with orderone.watch(model, optimizer, to="runs/a", every=50) as watch:
        for batch in batches:
            ...                          # any loop: nothing else changes
            watch.log(loss=loss)

Recorded at every ``every``-th step of the optimizer, for θ in total, by layer and by role
(labels ``by`` and ``group``); θ is what ``core.selection`` selects of what the optimizer updates:

norm, step_norm, relative_step    ‖θ_{t+1}‖, ‖δ‖, ‖δ‖/‖θ_t‖
alignment                         cos(δ, θ_t), [MRGSS21] §5.5
one_minus_cosine                  1 − cos(θ_t, θ_{t+1})
gradient_norm_before_clipping     ‖g‖ as the backward pass left it, averaged over ranks, unscaled
gradient_norm_after_clipping      ‖g‖ as the optimizer uses it
norm_if_misaligned                √(‖θ_0‖² + Σ‖δ‖²), [MRGSS21] (E.2)
norm_if_aligned                   ‖θ_0‖ + Σ‖δ‖, which θ·δ = ‖θ‖‖δ‖ implies, §5.3
step_untrusted                    only where it is above 0.1: the part of ‖δ‖ that the rounding
                                  of 16-bit weights alone would make

The sums over steps run over the steps seen. Where not every step is, each stands for the
``every`` steps up to it, and the label ``steps`` says so. A step that a gradient scaler skips is
no step; a fused optimizer, which skips it by itself, counts it, and nothing is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import ConfigError, ModelError, RunError
from orderone.core.record import Record
from orderone.core.selection import Selection, selected
from orderone.probes.gradients import GradientTap
from orderone.probes.groups import Groups
from orderone.probes.shards import local, over_ranks, rank_of
from orderone.probes.sinks import Output, Sink, output
from orderone.probes.slow import Probes
from orderone.probes.step import Pieces, copy_, empty_copy, pieces, squares, step_sums

_Hook = Callable[[Optimizer, Any, Any], None]

_PENDING = 16  # measured steps that are kept on the device before they are written
_SECONDS = 2.0  # or so long, when another one comes


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What one step left on the device: nothing of it has been waited for."""

    step: int
    sums: Tensor
    """(6, tensors): the four sums of ``step_sums``, ‖g‖² before and after clipping."""
    skipped: Tensor | None
    """Above 0 where the optimizer found infinities and did nothing."""


class Watch:
    """A watch that is attached; see ``watch``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: int,
        selection: Selection | None,
        snapshot: Literal["device", "cpu"],
        start: int,
        probes: Probes | None,
        output: Output,
    ) -> None:
        chosen = _updated(model, optimizer, selection)
        self.names = list(chosen)
        self.every = every
        self.steps = start
        """Steps that the optimizer has taken."""
        self._model = model
        self._parameters = list(chosen.values())
        self._tap = GradientTap(self._parameters)
        self._host = torch.device("cpu") if snapshot == "cpu" else None
        self._kept: Pieces | None = None
        self._running = False
        self._gradients: Tensor | None = None
        self._pending: list[_Measured] = []
        self._logged: list[tuple[int, str, float | Tensor, dict[str, str]]] = []
        self._flushed = time.monotonic()
        self._output = output
        self._probes = probes
        start_squares = over_ranks(squares(self._pieces(), len(chosen))[None], self._parameters)[0]
        dtypes = [parameter.dtype for parameter in self._parameters]
        self._groups = Groups(self.names, dtypes, start_squares, every=every)
        self._hooks = [
            optimizer.register_step_pre_hook(_uncompiled(self._before_step)),
            optimizer.register_step_post_hook(_uncompiled(self._after_step)),
        ]
        self._prepare()

    def log(self, values: Mapping[str, float | Tensor] | None = None, /, **more: Any) -> None:
        """Record numbers of your own, such as the loss, at the step that was taken last.

        Scalars on a device are waited for when records are flushed, not here.
        """
        if not self._hooks:
            raise RunError(
                "a number for a watch that is closed",
                expected="an attached one",
                do="log it before the watch is closed",
            )
        for name, value in {**(values or {}), **more}.items():
            _require_number(name, value)
            kept = value.detach().clone() if isinstance(value, Tensor) else value
            self._logged.append((self.steps, name, kept, {}))

    def flush(self) -> None:
        """Write what was measured and logged; waits for the device."""
        self._flushed = time.monotonic()
        pending, self._pending = self._pending, []
        logged, self._logged = self._logged, []
        if not self._output:
            return
        records = [record for each in pending for record in self._records(each)]
        records += [Record(s, name, float(value), labels) for s, name, value, labels in logged]
        # A stable sort: within a step, in the order measured.
        records.sort(key=lambda record: record.step)
        self._output.write(records)

    def close(self) -> None:
        """Detach from model and optimizer, and write all that is left; a second time does
        nothing."""
        self._close("done")

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close("done" if kind is None else "failed")

    # The optimizer's hooks ------------------------------------------------------------------------

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if (self.steps + 1) % self.every:
            return
        theta = self._pieces()
        if self._kept is None:
            self._kept = empty_copy(theta, device=self._host)
        copy_(self._kept, theta)
        self._running = True
        # A closure makes its gradients inside the step: they are read after it.
        closure = any(each is not None for each in (*args[1:], *kwargs.values()))
        self._gradients = None if closure else self._tap.before_and_after(optimizer)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self._running:
            self._running = False
            self._measure(optimizer)
        if self._probes is not None:
            self._probe(self._probes)
        self._prepare()
        old = time.monotonic() - self._flushed > _SECONDS
        if len(self._pending) >= _PENDING or (old and (self._pending or self._logged)):
            self.flush()

    def _measure(self, optimizer: Optimizer) -> None:
        assert self._kept is not None
        sums = step_sums(self._pieces(), self._kept, len(self.names))
        gradients = self._gradients
        if gradients is None:
            gradients = self._tap.before_and_after(optimizer)
        sums = over_ranks(torch.cat((sums, gradients.to(sums.device))), self._parameters)
        skipped = getattr(optimizer, "found_inf", None)
        skipped = None if skipped is None else skipped.detach().clone()
        self._pending.append(_Measured(step=self.steps, sums=sums, skipped=skipped))
        self._gradients = None

    def _prepare(self) -> None:
        """Read the gradients of the next step, if that is to be measured."""
        if (self.steps + 1) % self.every:
            self._tap.disarm()
        else:
            self._tap.arm()

    def _probe(self, probes: Probes) -> None:
        if self.steps % probes.every == 0:
            self._logged += [
                (self.steps, record.name, record.value, dict(record.labels))
                for record in probes.records(self._model, self.steps)
            ]

    # Records --------------------------------------------------------------------------------------

    def _pieces(self) -> Pieces:
        return pieces(local(parameter) for parameter in self._parameters)

    def _records(self, measured: _Measured) -> Iterable[Record]:
        if measured.skipped is not None and float(measured.skipped) > 0:
            return ()
        return self._groups.records(measured.step, measured.sums.cpu())

    def _close(self, status: str) -> None:
        for hook in self._hooks:
            hook.remove()
        self._tap.disarm()
        self._hooks, self._kept, self._running = [], None, False
        self.flush()
        self._output.close(status, self.steps)


def watch(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    to: str | Path | Sink,
    every: int = 50,
    also: str | Iterable[str | Sink] = (),
    selection: Selection | None = None,
    snapshot: Literal["device", "cpu"] = "device",
    probes: Probes | None = None,
    start: int | None = None,
    rank: int | None = None,
) -> Watch:
    """Watch ``optimizer`` update ``model`` until the watch is closed.

    to          a run folder, new or to be continued; or anything with write_all, flush and close
    also        further sinks: "tensorboard", "wandb", "trackio", or objects like ``to``
    snapshot    where θ_t is kept while a measured step is taken: one copy of the parameters
    probes      slower measurements on given batches
    start       steps taken before: counting goes on from there, and in a folder that is continued
                records of later steps are dropped, since they will come again
    rank        this process's rank, where it cannot be found: 0 writes
    """
    taken = start or 0
    _require_settings(every, taken, snapshot)
    parameters = list(_updated(model, optimizer, selection).values())
    config = {"every": every, "snapshot": snapshot, "start": taken}
    writes = (rank_of(model, parameters) if rank is None else rank) == 0
    return Watch(
        model,
        optimizer,
        every=every,
        selection=selection,
        snapshot=snapshot,
        start=taken,
        probes=probes,
        output=output(to, also, config=config, start=start) if writes else Output(),
    )


def _require_settings(every: Any, start: Any, snapshot: Any) -> None:
    whole = isinstance(every, int) and isinstance(start, int)
    if not whole or every < 1 or start < 0 or snapshot not in ("device", "cpu"):
        raise ConfigError(
            f"every = {every}, start = {start}, snapshot = {snapshot!r}",
            expected="every of 1 or more, start of 0 or more, snapshot 'device' or 'cpu'",
            do="correct it",
        )


def _require_number(name: object, value: object) -> None:
    """Asked without waiting for a device."""
    if isinstance(value, Tensor):
        single, what = value.numel() == 1 and not value.is_complex(), f"shape {tuple(value.shape)}"
    else:
        single, what = isinstance(value, Real), type(value).__name__
    if not single or not isinstance(name, str):
        raise ConfigError(
            f"'{name}' of {what}",
            expected="a single real number, under a name",
            do="log its mean, or another number made of it",
        )


def _uncompiled(hook: _Hook) -> _Hook:
    """The hook, left outside the graph where ``optimizer.step`` is compiled."""
    return cast(_Hook, torch.compiler.disable(hook))


def _updated(
    model: nn.Module, optimizer: Optimizer, selection: Selection | None
) -> dict[str, Tensor]:
    """The selected parameters that this optimizer updates."""
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    updated = {id(parameter) for group in groups for parameter in group["params"]}
    chosen = {name: p for name, p in selected(model, selection).items() if id(p) in updated}
    if not chosen:
        raise ModelError(
            "an optimizer with no selected parameter of the model",
            expected="one that updates some of them",
            do="attach after model and optimizer are wrapped, or select others with selection=",
        )
    return chosen
