"""The state of this interpreter's GIL. Imports nothing of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable


def is_gil_enabled() -> bool:
    """Return True if the GIL is on. A free-threaded build may turn it on, and does so for some imports."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # CPython 3.13
    return enabled is None or enabled()
