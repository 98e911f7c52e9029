"""Numbers of threads, which the stream has 32 bits for."""

from __future__ import annotations

import pytest

from splunk_profiler.capture import thread_registry
from splunk_profiler.capture.thread_registry import ThreadRegistry
from splunk_profiler.raw import RawThread

_MAX = 6


def _thread(key: int) -> RawThread:
    return RawThread(key, ident=key, native_id=0, stack=None, context=None, labels=None)


def test_numbers_begin_anew_without_those_of_threads_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_registry, "MAX_NUMBER", _MAX)
    registry = ThreadRegistry(lambda _native_id: "")
    numbers = []
    for key in range(1, 10):
        numbers.append(registry.add(_thread(key), 0).number)
        registry.keep([key], [] if key in (2, 4) else [key - 1])  # the first and the third go on
    assert numbers == [1, 2, 3, 4, 5, 6, 2, 4, 5]
