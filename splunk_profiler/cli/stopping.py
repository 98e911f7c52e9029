"""Waiting that a signal ends, for commands that must not be interrupted between two steps.

Runs on the main thread, which has SIGINT and SIGTERM blocked: they are taken synchronously, so that none arrives while
a thread of another process is held, or a file is half written.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_SETTLING_S = 0.02


@contextmanager
def signals_wait() -> Iterator[None]:
    """What is to end the command ends it between two steps; what came besides until then, as an impatient second Ctrl-C
    while the last results are printed, has been heard as well."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        while signal_came(0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_came(timeout_s: float) -> bool:
    """Wait up to `timeout_s` seconds for a signal inside `signals_wait`; True if one came, which is gone then."""
    if hasattr(signal, "sigtimedwait"):
        return signal.sigtimedwait(_STOPPING, timeout_s) is not None
    until = time.monotonic() + timeout_s  # macOS has only the other two calls
    while signal.sigpending().isdisjoint(_STOPPING):
        if (left_s := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(left_s, _SETTLING_S))
    signal.sigwait(_STOPPING)
    return True


def stopped_before(deadline: float, settle: Callable[[], bool]) -> bool:
    """Wait until `deadline` (of the monotonic clock); True if a signal came first.

    Args:
        deadline: seconds.
        settle: lets threads go that have stopped late; called again and again while it returns False.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        if not settle():
            left_s = min(left_s, _SETTLING_S)
        if signal_came(left_s):
            return True
    return signal_came(0)
