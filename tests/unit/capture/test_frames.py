"""Forks during walks of the portable walker, which turns the garbage collector off."""

from __future__ import annotations

import gc
import os
import sys

import pytest

from splunk_profiler.capture.frames import enable_gc_in_child, gc_disabled


@pytest.mark.parametrize("is_on", [True, False])
def test_child_forked_during_a_walk_has_its_collector_as_it_was(is_on: bool) -> None:
    if not is_on:
        gc.disable()
    try:
        with gc_disabled():
            assert gc.isenabled() is (is_on and sys.version_info[:2] != (3, 11))
            child = os.fork()
            if child == 0:
                enable_gc_in_child()
                os._exit(7 if gc.isenabled() == is_on else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
