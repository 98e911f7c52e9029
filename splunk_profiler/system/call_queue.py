"""Runs calls one at a time, also those that come from signal handlers and finalisers while another runs.

Each runs on a thread that asked for one, or on one of ours. Nothing here waits without bound, and an exception that a
signal handler raises at any instruction leaves the queue usable. Imports `threads` only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

from splunk_profiler.system.threads import WakeEvent, Worker, real_get_ident

_POLL_INTERVAL_S = 0.05
_MAX_CONSECUTIVE_CALLS = 8  # on a thread of the application: signals may come as fast as their calls are run


class _Call:
    """One call, the thread that asked for it, and whether it is over."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.ident = real_get_ident()()
        self.is_over = False
        self.ended = WakeEvent()

    def __call__(self) -> None:
        try:
            self._function()
        finally:
            self.is_over = True
            self.ended.set()


class CallQueue:
    """Calls that must not overlap.

    A lock would do, but for two things: a call can come on the thread that is in the middle of another one, and a
    thread must not wait for another one without bound. Whoever runs a call runs what came meanwhile as well, and leaves
    it to a thread of ours if that does not end.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._current: dict[str, _Call] = {}  # under "call", the one whose thread runs what waits

    def run(self, function: Callable[[], None], timeout_s: float) -> None:
        """Run `function` once no other call runs. Exceptions of it are raised here.

        In the middle of another call of this thread it returns at once: that one goes on, then runs `function`.

        Args:
            function: takes the time that it takes.
            timeout_s: how long to wait for calls of other threads. Afterwards it is for them to run this one, too.
        """
        call = _Call(function)
        deadline_s = time.monotonic() + timeout_s
        self._waiting.append(call)
        while True:
            try:
                self._run_waiting(call)
            except BaseException:
                self._run_waiting(call)  # what a signal handler has asked for before it raised
                raise
            running = self._current.get("call")
            left_s = deadline_s - time.monotonic()
            if call.is_over or left_s <= 0 or (running is not None and running.ident == call.ident):
                return
            call.ended.wait(min(left_s, _POLL_INTERVAL_S))

    def _run_waiting(self, own_call: _Call, max_calls: float = _MAX_CONSECUTIVE_CALLS) -> None:
        """Run the waiting calls, unless another call runs; more than `max_calls` are left to another thread.

        Taking the turn and giving it up are one operation each, and CPython runs signal handlers after an operation,
        not before one: so an exception of theirs cannot come between the turn and its end. A call stays in the queue
        until it is over, so that it is run if an exception comes before its turn.
        """
        current, waiting = self._current, self._waiting
        try:
            if current.setdefault("call", own_call) is own_call:
                while waiting and (max_calls or waiting[0].is_over):
                    if waiting[0].is_over:
                        waiting.popleft()
                    else:
                        max_calls -= 1
                        waiting[0]()
        finally:
            if "call" in current and current["call"] is own_call:
                current.clear()
        if waiting and not max_calls:
            with suppress(RuntimeError):  # there can be no more threads: the next call runs what waits
                Worker("calls", self._run_all_waiting).start()

    def _run_all_waiting(self) -> None:
        self._run_waiting(_Call(lambda: None), inf)
