"""2,000 damaged checkpoints; ``python -m tests.trajectory.fuzz 100000`` is the nightly run."""

import json
import subprocess
import sys
from pathlib import Path


def test_damaged_checkpoints_end_in_weights_or_in_a_clean_finding():
    """In a process of its own, whose address space is bounded."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.trajectory.fuzz", "2000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)["ended"]
    assert sum(ended.values()) == 2000
    # The damage reaches every way of being wrong, and some of it does no harm.
    assert {"read", "unreadable", "truncated", "shape", "missing-shard"} <= set(ended)
