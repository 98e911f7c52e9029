"""Marks of tests that need the native walker, of those that run on both, and also with either exporter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)
BOTH_WALKERS = pytest.mark.parametrize("walker", [pytest.param("native", marks=NATIVE), "portable"])
BOTH_EXPORTERS = pytest.mark.parametrize(
    ("walker", "exporter"),
    [
        pytest.param("native", "process", marks=NATIVE),
        pytest.param("native", "thread", marks=NATIVE),
        ("portable", "thread"),
    ],
)
