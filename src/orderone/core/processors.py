"""How many cores this process may use."""

import os


def cores() -> int:
    """Those that it is allowed, which may be fewer than the machine has; at least 1."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
