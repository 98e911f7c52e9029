"""Callbacks that hold an event loop: found in made-up snapshots of its thread."""

from __future__ import annotations

import pytest

from splunk_profiler.model import Frame, Stack, Thread
from splunk_profiler.pipeline.blocked_loops import BlockedLoops, is_in_callback
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, CapturedThread, TaskSeen, ThreadState

MS = 1_000_000
MAIN = ("__main__", "main")
RUNNER = ("asyncio.runners.Runner", "run")
STEP = ("asyncio.base_events.BaseEventLoop", "_run_once")
FOREVER = ("asyncio.base_events.BaseEventLoop", "run_forever")
HANDLE = ("asyncio.events.Handle", "_run")
SELECT = ("selectors.EpollSelector", "select")
ASYNCIO = [RUNNER, ("asyncio.base_events.BaseEventLoop", "run_until_complete"), FOREVER, STEP]
UVLOOP = [RUNNER]


def stack(*places: tuple[str, str]) -> Stack:
    """Make a stack of places, root first."""
    return Stack(tuple(Frame(*place, "app.py", 1) for place in reversed(places)), truncated=False)


IN_SELECT = stack(MAIN, *ASYNCIO, SELECT)
PARSE = stack(MAIN, *ASYNCIO, HANDLE, ("app", "serve"), ("app", "parse"))
RENDER = stack(MAIN, *ASYNCIO, HANDLE, ("app", "serve"), ("app", "render"))


class Bench:
    """A detector of 100 ms, and one thread that is sampled each 40 ms."""

    def __init__(self, threshold_ms: int = 100) -> None:
        self.loops = BlockedLoops(threshold_ms * MS)
        self._now_ns = 0
        self._info = CapturedThread(Thread(1, "loop", 0x7001, 101))
        self.events: list[CapturedEvent] = []

    def see(self, *seen: tuple[Stack, bool] | None, is_complete: bool = False, has_ended: bool = False) -> None:
        """Take snapshots: of the thread's stack and True if it has switched no context, or of no change."""
        for one in seen:
            self._now_ns += 40 * MS
            states = [ThreadState(self._info, one[0], None, (), 0, 0, 0, one[1])] if one is not None else []
            ended = [1] if has_ended else []
            snapshot = CapturedSnapshot(self._now_ns, self._now_ns, 0, 0, 0, 0, 0, False, is_complete, states, ended)
            self.events += self.loops.take(snapshot)

    def see_task(self, name: str, *, number: int = 1) -> None:
        """Take the name of the task that a thread runs, 10 ms after the last snapshot."""
        self.loops.see_task(TaskSeen(number, self._now_ns + 10 * MS, name))

    @property
    def found(self) -> list[tuple[int, int, str]]:
        """Count, milliseconds and innermost function of the events."""
        return [(one.event.count, one.event.amount // MS, one.thread.stack.frames[0].function) for one in self.events]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([MAIN, *ASYNCIO, SELECT], False),
        ([MAIN, *ASYNCIO], False),
        ([MAIN, *ASYNCIO, HANDLE], True),
        ([MAIN, *ASYNCIO, HANDLE, ("app", "serve")], True),
        ([MAIN, *UVLOOP], False),
        ([MAIN, *UVLOOP, ("app", "serve")], True),
        ([("uvloop", "run"), *UVLOOP, ("uvloop.run.<locals>", "wrapper"), ("app", "serve")], True),
        ([("uvloop", "run"), *UVLOOP], False),
        ([("uvicorn.server.Server", "run"), ("uvicorn._compat", "asyncio_run"), *UVLOOP], False),
        ([MAIN, RUNNER, ("asyncio.runners.Runner", "_lazy_init"), ("app", "make_loop")], False),
        ([MAIN, RUNNER, ("qasync.QEventLoop", "run_until_complete"), ("qasync.QEventLoop", "run_forever")], False),
        ([MAIN, ("app", "serve")], False),
        ([], False),
    ],
)
def test_is_in_callback_knows_loops_and_waits(places: list[tuple[str, str]], expected: bool) -> None:
    assert is_in_callback(stack(*places)) is expected


def test_loop_blocked_event_has_the_time_and_the_most_frequent_stack(bench: Bench) -> None:
    bench.see((IN_SELECT, False), (PARSE, False), (RENDER, True), (RENDER, True), (PARSE, True), (IN_SELECT, False))
    assert bench.found == [(1, 120, "parse")]
    bench.see((RENDER, False), (RENDER, True), (PARSE, True), (RENDER, True), (IN_SELECT, False))
    assert bench.found[1:] == [(1, 120, "render")]


def test_loop_that_is_busy_with_short_callbacks_gives_no_event(bench: Bench) -> None:
    bench.see(*[(PARSE, False)] * 50)
    bench.see((PARSE, True), (PARSE, True), (PARSE, False), (PARSE, True), (PARSE, True), (IN_SELECT, False))
    assert bench.found == []


def test_loop_blocked_by_idle_thread_counts_snapshots_without_it(bench: Bench) -> None:
    bench.see((PARSE, False), (PARSE, True), None, None, None, (IN_SELECT, False))
    assert bench.found == [(1, 160, "parse")]


def test_loop_blocked_for_ever_is_reported_each_second_and_once(bench: Bench) -> None:
    bench.see((PARSE, False), *[None] * 60)
    assert bench.found == [(1, 1000, "parse"), (0, 1000, "parse")]
    bench.events += bench.loops.close()
    assert bench.found[2:] == [(0, 400, "parse")]
    assert bench.loops.close() == []


def test_loop_whose_thread_ends_or_is_unlisted_has_its_event(bench: Bench) -> None:
    bench.see((PARSE, False), None, None, None)
    bench.see(None, has_ended=True)
    bench.see((PARSE, False), None, None, None)
    bench.see(None, is_complete=True)
    assert bench.found == [(1, 120, "parse")] * 2


def test_loop_blocked_across_a_gap_counts_anew(bench: Bench) -> None:
    bench.see((PARSE, False), (PARSE, True), (PARSE, True))
    assert bench.loops.close() == []
    bench.see((PARSE, True), (PARSE, True), (PARSE, True), (IN_SELECT, False))
    assert bench.found == []


def test_loop_blocked_event_has_the_task_that_was_seen_inside(bench: Bench) -> None:
    bench.see((IN_SELECT, False))
    bench.see_task("before")
    bench.see((PARSE, False), (PARSE, True))
    bench.see_task("inside")
    bench.see((PARSE, True), (PARSE, True))
    bench.see_task("of the next callback, perhaps")
    bench.see_task("of another thread", number=2)
    bench.see((RENDER, False), (RENDER, True), (RENDER, True), (RENDER, True))
    bench.see_task("too late")
    bench.see((IN_SELECT, False))
    assert [event.thread.labels for event in bench.events] == [(("task.name", "inside"),), ()]


def test_loop_threshold_of_zero_finds_nothing() -> None:
    bench = Bench(0)
    bench.see(*[(PARSE, True)] * 9, (IN_SELECT, False))
    assert bench.found == []
