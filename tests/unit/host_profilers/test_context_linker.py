"""Tests of the look for loaded modules beside other threads that are in the dynamic linker, and beside forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from context_factory import hooks, install
from linker_threads import thread_in_linker
from own_memory import LABELS_PATH

from splunk_profiler import _context as native

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions warn about forks beside threads


def status_of_child(body: Callable[[], object]) -> int:
    """Run `body` in a forked child, which a signal ends if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        body()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_look_for_modules_lets_a_thread_in_the_linker_run_python() -> None:
    def body() -> None:
        native.wait_for_linker()
        with thread_in_linker() as is_over:
            is_over.set()
            native.refresh()

    with hooks():
        assert status_of_child(body) == 0


def test_look_for_a_descriptor_lets_a_thread_in_the_linker_run_python() -> None:
    def body() -> None:
        native.wait_for_linker()
        native.load_labels_library(LABELS_PATH)
        with thread_in_linker() as is_over:  # where a library is loaded already, the linker has nothing to wait for
            is_over.set()
            assert native.load_labels_library(LABELS_PATH) == "static"

    assert status_of_child(body) == 0


def test_child_forked_beside_a_look_for_modules_can_use_the_linker() -> None:
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            install()  # looks at all modules, which takes longest

    with hooks():
        thread = threading.Thread(target=look)
        thread.start()
        statuses = [status_of_child(native.wait_for_linker) for _ in range(30)]
        is_over.set()
        thread.join()
    assert set(statuses) == {0}
