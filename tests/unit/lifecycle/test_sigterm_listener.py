"""The thread that waits for SIGTERM in the native walker."""

from __future__ import annotations

import threading

import pytest

walker = pytest.importorskip("splunk_profiler._walker")

DEADLINE_S = 30


def test_another_listener_ends_the_one_before_it() -> None:
    first = threading.Thread(target=walker.sigterm_wait, args=(walker.sigterm_open(1000),), daemon=True)
    first.start()
    second = threading.Thread(target=walker.sigterm_wait, args=(walker.sigterm_open(1000),), daemon=True)
    second.start()
    first.join(DEADLINE_S)
    assert (first.is_alive(), second.is_alive()) == (False, True)
    assert walker.sigterm_close()
    second.join(DEADLINE_S)
    assert not second.is_alive()
