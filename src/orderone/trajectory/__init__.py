"""Checkpoint series: sources, one-pass geometry, growth laws."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderone.trajectory.told import Trajectory


class _Callable(ModuleType):
    """This room, and the public function ``orderone.trajectory(...)``: one name is both.

    An import of the room puts it in the package's namespace under that name, so it must answer.
    """

    def __call__(self, *arguments: Any, **options: Any) -> "Trajectory":
        """``series.trajectory``: the geometry of a whole checkpoint series, read once."""
        from orderone.trajectory.series import trajectory

        return trajectory(*arguments, **options)

    @property
    def trajectory(self) -> "_Callable":
        """Itself, where the package looks for its public names."""
        return self


sys.modules[__name__].__class__ = _Callable
