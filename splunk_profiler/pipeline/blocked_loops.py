"""Event loops that one callback has held for long, found from snapshots in a row.

A loop enters a context before each callback and leaves it afterwards, and CPython counts both. So a thread
that was inside a callback in two snapshots, and has neither entered nor left a context between them
(`ThreadState.is_steady`), was in the same callback all the time. A callback that itself runs code in another
context is missed. One thread runs all of it. Pure; imports the model and `stream`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from splunk_profiler.model import Event, EventKind, Stack, ValueType
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, TaskSeen, ThreadState

LOOP_BLOCKED = EventKind(
    "loop_blocked", count=ValueType("loop_blocks", "count"), amount=ValueType("loop_blocked", "nanoseconds")
)
_MAX_UNREPORTED_NS = 1_000_000_000  # a loop may be blocked for ever
_MAX_STACKS = 64
_HANDLE = ("asyncio.events.Handle", "_run")
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
    if any((frame.namespace, frame.function) == _HANDLE for frame in stack.frames):
        return True
    return any(
        ((caller.namespace, caller.function) in _RUNNERS or caller.call in _LOOP_FUNCTIONS)
        and callee.function not in _LOOP_FUNCTIONS
        and (callee.function == "wrapper" or not callee.namespace.startswith(_RUNNER_NAMESPACES))
        for callee, caller in pairwise(stack.frames)
    )


@dataclass(slots=True)
class _Callback:
    """A callback from the first snapshot inside it to the last, and the stacks of what is not reported yet."""

    state: ThreadState
    since_ns: int
    until_ns: int
    time_ns: int
    reported_ns: int = 0
    seen: dict[Stack, tuple[int, ThreadState]] = field(default_factory=dict)
    task: TaskSeen | None = None

    @property
    def unreported_ns(self) -> int:
        return self.until_ns - self.since_ns - self.reported_ns

    def see(self, state: ThreadState, captured: CapturedSnapshot) -> None:
        """Add a snapshot."""
        self.state, self.until_ns, self.time_ns = state, captured.instant_ns, captured.time_ns
        if state.stack in self.seen or len(self.seen) < _MAX_STACKS:
            self.seen[state.stack] = (self.seen.get(state.stack, (0, state))[0] + 1, state)

    def see_task(self, task: TaskSeen) -> None:
        """Add the task that the thread was running, unless that of an instant inside is known."""
        if self.task is None or self.task.instant_ns > self.until_ns:
            self.task = task

    def report(self) -> CapturedEvent:
        """Return the event of what is not reported yet, with the stack that was seen most often."""
        _, state = max(self.seen.values(), key=lambda seen: seen[0])
        if self.task is not None and self.task.instant_ns <= self.until_ns:  # a later one may be the next callback's
            state = state._replace(labels=(("task.name", self.task.name), *state.labels))
        event = Event(LOOP_BLOCKED, (), int(self.reported_ns == 0), self.unreported_ns)
        self.reported_ns += self.unreported_ns
        self.seen.clear()
        return CapturedEvent(self.time_ns, self.until_ns, state, event)


class BlockedLoops:
    """Finds callbacks that hold their loop for `threshold_ns` or longer; 0: none.

    A callback counts from the first snapshot inside it to the last, so for less than it took.
    """

    def __init__(self, threshold_ns: int) -> None:
        self._threshold_ns = threshold_ns
        self._callbacks: dict[int, _Callback] = {}  # by number of the thread

    def take(self, captured: CapturedSnapshot) -> list[CapturedEvent]:
        """Return the events that a snapshot of all threads ends, and those that have not been reported for long."""
        if not self._threshold_ns:
            return []
        listed = {state.number: state for state in captured.threads}
        found = []
        for number, callback in list(self._callbacks.items()):
            state = listed.pop(number, None)
            if self._continues(callback, state, captured):
                callback.see(state or callback.state, captured)
                found += self._report(callback, _MAX_UNREPORTED_NS)
                continue
            del self._callbacks[number]
            found += self._report(callback, 1)
            if state is not None:
                listed[number] = state
        for number, state in listed.items():
            if state.stack.derive(is_in_callback):
                callback = self._callbacks[number] = _Callback(state, captured.instant_ns, 0, 0)
                callback.see(state, captured)
        return found

    def see_task(self, task: TaskSeen) -> None:
        """Take the task that a thread was running since its last snapshot."""
        callback = self._callbacks.get(task.number)
        if callback is not None and task.instant_ns >= callback.since_ns:
            callback.see_task(task)

    def close(self) -> list[CapturedEvent]:
        """Return what is not reported; captures may be missing between the last snapshot and the next."""
        callbacks, self._callbacks = self._callbacks, {}
        return [event for callback in callbacks.values() for event in self._report(callback, 1)]

    def _continues(self, callback: _Callback, state: ThreadState | None, captured: CapturedSnapshot) -> bool:
        """Return True if a thread is still in its callback; one that is not listed is as it was."""
        if state is None:
            return not captured.is_complete and callback.state.number not in captured.ended
        return state.is_steady and state.stack.derive(is_in_callback)

    def _report(self, callback: _Callback, min_ns: int) -> list[CapturedEvent]:
        is_long = callback.until_ns - callback.since_ns >= self._threshold_ns
        return [callback.report()] if is_long and callback.unreported_ns >= min_ns else []
