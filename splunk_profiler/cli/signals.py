"""Waiting that a signal ends, for commands that must not be interrupted between two steps.

Runs on the main thread, which has SIGINT and SIGTERM blocked: they are taken synchronously, so that none arrives while
a thread of another process is held, or a file is half written.
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
    """What is to end the command ends it between two steps; what came besides until then, as an impatient second Ctrl-C
    while the last results are printed, has been heard as well."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        while wait_for_signal(0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for_signal(timeout_s: float) -> bool:
    """Wait up to `timeout_s` seconds for a signal inside `block_signals`; True if one came, which is gone then."""
    if hasattr(signal, "sigtimedwait"):
        return signal.sigtimedwait(_STOP_SIGNALS, timeout_s) is not None
    until = time.monotonic() + timeout_s  # macOS has only the other two calls
    while signal.sigpending().isdisjoint(_STOP_SIGNALS):
        if (left_s := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(left_s, _SETTLE_INTERVAL_S))
    signal.sigwait(_STOP_SIGNALS)
    return True


def wait_until_deadline(deadline: float, detach_pending: Callable[[], bool]) -> bool:
    """Wait until `deadline` (of the monotonic clock); True if a signal came first.

    Args:
        deadline: seconds.
        detach_pending: lets threads go that have stopped late; called again and again while it returns False.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        if not detach_pending():
            left_s = min(left_s, _SETTLE_INTERVAL_S)
        if wait_for_signal(left_s):
            return True
    return wait_for_signal(0)
