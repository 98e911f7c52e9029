"""Waiting that a signal ends, for commands that stop threads of other processes.

Runs on the main thread, which has SIGINT and SIGTERM blocked: they are taken synchronously, so that none arrives while
a thread is held.
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
        while signal.sigtimedwait(_STOPPING, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stopped_before(deadline: float, settle: Callable[[], bool]) -> bool:
    """Wait until `deadline` (of the monotonic clock); True if a signal came first.

    Args:
        deadline: seconds.
        settle: lets threads go that have stopped late; called again and again while it returns False.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        if not settle():
            left_s = min(left_s, _SETTLING_S)
        if signal.sigtimedwait(_STOPPING, left_s) is not None:
            return True
    return signal.sigtimedwait(_STOPPING, 0) is not None
