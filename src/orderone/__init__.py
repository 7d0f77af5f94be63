"""Keep transformers of order one: before, during and after training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderone.experiments.coordinates import coordinates as coordinates
    from orderone.probes.heads import heads as heads
    from orderone.probes.kernel import kernel as kernel
    from orderone.probes.saturation import saturation as saturation
    from orderone.probes.tangent import tangent as tangent
    from orderone.probes.watch import watch as watch
    from orderone.scaling.plan import plan as plan
    from orderone.theory.kernels import kernels as kernels
    from orderone.trajectory.series import trajectory as trajectory

__version__ = "0.1.0"

# Public name → module that has it. Imported on first use: ``import orderone`` loads no torch.
_PUBLIC = {
    "coordinates": "orderone.experiments.coordinates",
    "kernels": "orderone.theory.kernels",
    "kernel": "orderone.probes.kernel",
    "heads": "orderone.probes.heads",
    "plan": "orderone.scaling.plan",
    "saturation": "orderone.probes.saturation",
    "tangent": "orderone.probes.tangent",
    "trajectory": "orderone.trajectory",
    "watch": "orderone.probes.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'orderone' has no attribute '{name}'")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
