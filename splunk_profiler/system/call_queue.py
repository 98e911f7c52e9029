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

from splunk_profiler.system.threads import Signal, Worker, real_get_ident

_LOOK_AGAIN_S = 0.05
_MOST_IN_A_ROW = 8  # on a thread of the application: signals may come as fast as their calls are run


class _Call:
    """One call, the thread that asked for it, and whether it is over."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.ident = real_get_ident()()
        self.over = False
        self.ended = Signal()

    def __call__(self) -> None:
        try:
            self._function()
        finally:
            self.over = True
            self.ended.set()


class CallQueue:
    """Calls that must not overlap.

    A lock would do, but for two things: a call can come on the thread that is in the middle of another one, and a
    thread must not wait for another one without bound. Whoever runs a call runs what came meanwhile as well, and leaves
    it to a thread of ours if that does not end.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._turn: dict[str, _Call] = {}  # under "call", the one whose thread runs what waits

    def run(self, function: Callable[[], None], timeout_s: float) -> None:
        """Run `function` once no other call runs. Exceptions of it are raised here.

        In the middle of another call of this thread it returns at once: that one goes on, then runs `function`.

        Args:
            function: takes the time that it takes.
            timeout_s: how long to wait for calls of other threads. Afterwards it is for them to run this one, too.
        """
        call = _Call(function)
        until = time.monotonic() + timeout_s
        self._waiting.append(call)
        while True:
            try:
                self._work_off(call)
            except BaseException:
                self._work_off(call)  # what a signal handler has asked for before it raised
                raise
            running = self._turn.get("call")
            left_s = until - time.monotonic()
            if call.over or left_s <= 0 or (running is not None and running.ident == call.ident):
                return
            call.ended.wait(min(left_s, _LOOK_AGAIN_S))

    def _work_off(self, own: _Call, most: float = _MOST_IN_A_ROW) -> None:
        """Run what waits, unless another thread does, or another call of this one; more than `most` on another thread.

        Taking the turn and giving it up are one operation each, and CPython runs signal handlers after an operation,
        not before one: so an exception of theirs cannot come between the turn and its end. A call stays in the queue
        until it is over, so that it is run if an exception comes before its turn.
        """
        turn, waiting = self._turn, self._waiting
        try:
            if turn.setdefault("call", own) is own:
                while waiting and (most or waiting[0].over):
                    if waiting[0].over:
                        waiting.popleft()
                    else:
                        most -= 1
                        waiting[0]()
        finally:
            if "call" in turn and turn["call"] is own:
                turn.clear()
        if waiting and not most:
            with suppress(RuntimeError):  # there can be no more threads: the next call runs what waits
                Worker("calls", self._work_off_all).start()

    def _work_off_all(self) -> None:
        self._work_off(_Call(lambda: None), inf)
