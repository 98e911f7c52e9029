"""Waits that SIGINT or SIGTERM end, for commands that must not be interrupted in the middle of a step.

Runs on the main thread. Signals are blocked and taken synchronously, so none arrives while a thread of another process
is stopped, or while a file is half written.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SETTLE_INTERVAL_S = 0.02


@contextmanager
def block_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM; discard those still pending on exit, such as a second Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        while wait_for_signal(0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for_signal(timeout_s: float) -> bool:
    """Wait up to `timeout_s` seconds for a signal inside `block_signals` and take it; False if none came."""
    if hasattr(signal, "sigtimedwait"):
        found = signal.sigtimedwait(_STOP_SIGNALS, timeout_s)
        # CPython returns arbitrary fields if a stop (SIGSTOP) outlasts the wait.
        return found is not None and found.si_signo in _STOP_SIGNALS
    until = time.monotonic() + timeout_s  # macOS has no sigtimedwait
    while signal.sigpending().isdisjoint(_STOP_SIGNALS):
        if (left_s := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(left_s, _SETTLE_INTERVAL_S))
    signal.sigwait(_STOP_SIGNALS)
    return True


def wait_until_deadline(deadline: float, detach_pending: Callable[[], bool]) -> bool:
    """Wait until `deadline` (seconds of the monotonic clock); True if a signal came first.

    `detach_pending` releases threads that stopped late; it is called repeatedly until it returns True.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        if not detach_pending():
            left_s = min(left_s, _SETTLE_INTERVAL_S)
        if wait_for_signal(left_s):
            return True
    return wait_for_signal(0)
