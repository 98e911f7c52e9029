"""Marks of tests that need the native walker, and of those that run on both."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)
BOTH_WALKERS = pytest.mark.parametrize("walker", [pytest.param("native", marks=NATIVE), "portable"])
