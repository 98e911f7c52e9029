"""Context managers that are freed while a frame still shows their address: the walker reads none of them.

They are so large that the system takes the memory back at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
import walker_factory
from contended_locks import entering, holders

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the frames of CPython 3.10 do not tell")

GATE = Lock()


def pass_gate() -> bool:
    return GATE.acquire()


def manager_type(enter: Any, leave: Any) -> Any:
    return type("Manager", (bytes,), {"__enter__": enter, "__exit__": leave})


def holders_while(run: Callable[[], object], is_waiting: Callable[[Any], bool]) -> list[tuple[Any, int]]:
    """Return what is found while another thread waits in `run`."""
    ticker = walker_factory.make()
    thread = threading.Thread(target=run)
    with GATE:
        thread.start()
        while not is_waiting(ticker):
            pass
        found = holders(ticker)
    thread.join()
    return found


@pytest.mark.parametrize("enter", [GATE.acquire, pass_gate])
def test_manager_that_is_freed_before_its_enter_is_called_is_not_read(enter: Callable[[], bool]) -> None:
    manager = manager_type(staticmethod(enter), staticmethod(lambda *_: GATE.release()))

    def run() -> None:
        with manager(1 << 26):
            pass

    assert holders_while(run, lambda ticker: run.__code__ in dict(entering(ticker))) == []


def test_manager_that_is_freed_after_its_enter_has_failed_is_not_read() -> None:
    manager, ending = manager_type(staticmethod(lambda: dict[str, int]()["missing"]), lambda *_: None), []

    def wait_at_end() -> Iterator[None]:
        try:
            yield
        finally:
            ending.append(True)
            GATE.acquire()
            GATE.release()

    def fail() -> None:
        for _ in wait_at_end():  # ends after the manager, while the frame is where that was entered
            with manager(1 << 26):
                pass

    def run() -> None:
        with suppress(KeyError):
            fail()

    assert holders_while(run, lambda _: bool(ending)) == []
