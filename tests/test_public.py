"""The public names: there on first use, and nothing loaded before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import orderone
from orderone import _PUBLIC


@pytest.mark.parametrize("name", sorted(_PUBLIC))
def test_public_names_are_callables(name: str) -> None:
    assert callable(getattr(orderone, name))
    assert name in dir(orderone)


def test_import_is_light_and_plan_is_the_function() -> None:
    """No torch at ``import orderone``; a module called plan does not hide the function."""
    code = (
        "import sys, orderone; assert 'torch' not in sys.modules; "
        "import orderone.scaling.plan; from orderone import plan; "
        "assert plan is orderone.plan is orderone.scaling.plan.plan; assert callable(plan)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        orderone.plam  # noqa: B018
