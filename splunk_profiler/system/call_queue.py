"""A queue of calls that run one at a time, also those from signal handlers and finalisers while another runs.

Calls run on the threads that ask for them, or on one of ours. Every wait is bounded. An exception that a signal
handler raises at any instruction leaves the queue usable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

from splunk_profiler.system import clocks
from splunk_profiler.system.threads import WakeEvent, Worker, real_get_ident

_POLL_INTERVAL_S = 0.05
_MAX_CONSECUTIVE_CALLS = 8  # on a thread of the application: signals may come as fast as their calls are run


class _Call:
    """One call, the thread that asked for it, and its state."""

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

    A lock would not do: a call can come on the thread that is in the middle of another one, and waits are bounded.
    A thread that runs its call also runs those that come meanwhile. If they do not end, it leaves them to our thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._current: dict[str, _Call] = {}  # "call": the one whose thread runs all that wait

    def run(self, function: Callable[[], None], timeout_s: float) -> None:
        """Run `function` once no other call runs; raise what it raises.

        In the middle of another call of this thread, return at once: `function` runs after that call.

        Args:
            function: the call; its own duration is not limited.
            timeout_s: seconds to wait for calls of other threads. After that, they run this one too.
        """
        call = _Call(function)
        deadline_s = clocks.monotonic() + timeout_s
        self._waiting.append(call)
        while True:
            try:
                self._run_waiting(call)
            except BaseException:
                self._run_waiting(call)  # calls of a signal handler that raised after it
                raise
            running = self._current.get("call")
            left_s = deadline_s - clocks.monotonic()
            if call.is_over or left_s <= 0 or (running is not None and running.ident == call.ident):
                return
            call.ended.wait(min(left_s, _POLL_INTERVAL_S))

    def _run_waiting(self, own_call: _Call, max_calls: float = _MAX_CONSECUTIVE_CALLS) -> None:
        """Run the waiting calls, unless another call runs; leave those beyond `max_calls` to another thread.

        Taking the turn and giving it up are one operation each. CPython runs signal handlers after an operation, not
        before one, so their exceptions cannot separate the two. A call stays in the queue until it is over: an
        exception before its turn does not lose it.
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
            with suppress(RuntimeError):  # no more threads: the next call runs those that wait
                Worker("calls", lambda: self._run_waiting(_Call(lambda: None), inf)).start()
