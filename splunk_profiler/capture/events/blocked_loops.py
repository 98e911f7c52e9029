"""Callbacks that hold their event loop for long, of asyncio and uvloop.

The native ticker looks at the loops (`native/walker/loop_watch.c`). This module tells callbacks from loops that wait
for work, and finds the names of tasks. Runs on the sampler thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.running_loops import RunningLoops, name_labels
from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, Stack, ValueType
from splunk_profiler.raw import RawEvent, RecordedEvent

if TYPE_CHECKING:
    from splunk_profiler import _walker

LOOP_BLOCKED = EventKind(
    "loop_blocked", count=ValueType("loop_blocks", "count"), amount=ValueType("loop_blocked", "nanoseconds")
)
_HANDLE = ("asyncio.events.Handle", "_run")
_STEP = "_run_once"  # of a loop: calls handles, and waits for work
_LOOP_NAMESPACES = ("asyncio.base_events", "nest_asyncio")
# The functions whose callee is a loop, as is that of a frame that calls one of `_LOOP_FUNCTIONS`; where that is uvloop,
# which has no frames, their callee is a callback.
_RUNNERS = {
    ("asyncio.runners.Runner", "run"),
    ("asyncio.runners", "run"),
    ("uvloop", "run"),
    ("uvicorn.server.Server", "run"),
    ("uvicorn.workers.UvicornWorker", "run"),
}
_LOOP_FUNCTIONS = {"run_until_complete", "run_forever", "asyncio_run"}
_RUNNER_NAMESPACES = ("asyncio.runners", "asyncio.base_events", "asyncio.unix_events", "uvloop", "signal")


def is_in_callback(stack: Stack) -> bool:
    """Return True for the stack of a thread inside a callback of asyncio's loop or uvloop."""
    for frame in stack.frames:  # a callback may run the loop again (nest_asyncio): the innermost step tells
        if (frame.namespace, frame.function) == _HANDLE:
            return True
        if frame.function == _STEP and frame.namespace.startswith(_LOOP_NAMESPACES):
            return False
    return any(
        ((caller.namespace, caller.function) in _RUNNERS or caller.call in _LOOP_FUNCTIONS)
        and callee.function not in _LOOP_FUNCTIONS
        and (callee.function == "wrapper" or not callee.namespace.startswith(_RUNNER_NAMESPACES))
        for callee, caller in pairwise(stack.frames)
    )


class BlockedLoopSource(EventSource):
    """The source of callbacks that take `threshold_ns` or longer, once asyncio is loaded."""

    def __init__(self, ticker: _walker.Ticker[Any, Any], threshold_ns: int) -> None:
        self._ticker = ticker
        self._threshold_ns = threshold_ns
        self._loops = RunningLoops(ticker)
        self._is_recording = self._is_watching = False
        self._ratio = 1.0

    def start(self) -> None:
        """Start recording."""
        self._is_recording = True

    def stop(self) -> None:
        """Stop recording."""
        self._is_recording = False

    def slow_down(self, ratio: float) -> None:
        """Look at the loops less often by this ratio than at the start."""
        self._ratio = ratio
        self._ticker.slow_down_looks(ratio)

    def drain(self) -> Sequence[RawEvent]:
        """Return the callbacks that have ended, and each second those that have not."""
        if self._is_recording and not self._is_watching:
            self._watch()
        blocks = self._ticker.drain_loop_blocks()
        return [_make_event(block) for block in blocks if block.thread.stack.derive(is_in_callback)]

    def _watch(self) -> None:
        asyncio_in_c = self._loops.asyncio_in_c()
        if asyncio_in_c is not None:
            current_tasks = getattr(asyncio_in_c, "_current_tasks", None)
            self._ticker.watch_loops(self._threshold_ns, current_tasks, asyncio_in_c.Task)
            self._ticker.slow_down_looks(self._ratio)  # there was nothing to slow down yet
            self._is_watching = True


def make_blocked_loop_source(config: Config, ticker: Any, native: bool) -> BlockedLoopSource | None:
    """Return the source; None where it is off or the walker is the portable one."""
    if not (native and config.loop_blocked_ms):
        return None
    return BlockedLoopSource(ticker, config.loop_blocked_ms * 1_000_000)


def _make_event(block: RecordedEvent) -> RawEvent:
    event = Event(LOOP_BLOCKED, (), block.event_count, block.event_amount)
    return RawEvent(block.time_ns, block.thread, event, name_labels(*block.details))
