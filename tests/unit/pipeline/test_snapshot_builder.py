"""The contract of both walkers and of the snapshot builder; each walker runs all tests."""

from __future__ import annotations

import _thread
import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from stream_feed import StreamedBuilder
from top_frames import top_frame

from splunk_profiler.capture.walker import Ticker, WalkerChoice, choose_walker, make_ticker
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.samples import Sample, Snapshot

PERIOD_NS = 1_000_000_000


class Watcher:
    """A walker of one kind and its snapshot builder."""

    def __init__(self, choice: WalkerChoice, *, max_depth: int = 1024, include_internal: bool = False) -> None:
        self.tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), lambda: None)
        self.ticker: Ticker = make_ticker(choice, spans.context_variable(), self.tracker.value_of, max_depth)
        self.capture = StreamedBuilder(
            spans.span_ref, native=choice.name == "native", period_ns=PERIOD_NS, include_internal=include_internal
        )

    def look(self) -> Snapshot:
        self.ticker.capture()
        (raw,) = self.ticker.drain(0)
        return self.capture.snapshot(raw)

    def see(self, name: str) -> Sample:
        (sample,) = [sample for sample in self.look().samples if sample.thread.thread.name == name]
        return sample


@pytest.fixture(params=["native", "portable"])
def choice(request: pytest.FixtureRequest) -> WalkerChoice:
    chosen = choose_walker(request.param)
    if chosen.name != request.param:
        pytest.skip(f"no native walker: {chosen.reason}")
    return chosen


@pytest.fixture
def watcher(choice: WalkerChoice) -> Iterator[Watcher]:
    watcher = Watcher(choice)
    watcher.tracker.install()
    yield watcher
    watcher.tracker.remove()


@contextmanager
def thread(body: Callable[[Callable[[], None]], None], name: str = "subject") -> Iterator[threading.Thread]:
    """Run `body(wait)` in a thread; `wait()` signals its arrival and blocks until the test is over."""
    here, over = threading.Event(), threading.Lock()
    over.acquire()

    def wait() -> None:
        here.set()
        over.acquire()

    subject = threading.Thread(target=body, args=(wait,), name=name)
    subject.start()
    try:
        here.wait()
        while top_frame(subject.ident or 0).f_lineno != wait.__code__.co_firstlineno + 2:
            os.sched_yield()
        yield subject  # its stack stays the same from then on
    finally:
        over.release()
        subject.join()


def _places(frame: FrameType | None) -> list[tuple[str, str, int | None]]:
    places = []
    while frame is not None:
        places.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def deep(levels: int, then: Callable[[], None]) -> None:
    if levels:
        deep(levels - 1, then)
    else:
        then()


def test_a_still_stack_is_the_interpreters_own_leaf_first(watcher: Watcher) -> None:
    def body(wait: Callable[[], None]) -> None:
        class Local:
            def method(self) -> list[object]:
                return list(map(call, range(1)))

        def call(_: int) -> None:
            wait()

        def generator() -> Iterator[list[object]]:
            yield from [made for made in [Local().method()]]  # noqa: C416

        max([1], key=lambda _: list(generator()) and 0)

    with thread(body) as subject:
        sample = watcher.see("subject")
        expected = _places(top_frame(subject.ident or 0))
    assert [(f.function, f.file, f.line) for f in sample.thread.stack.frames] == expected
    assert not sample.thread.stack.truncated


def test_a_thread_that_has_not_moved_gives_the_same_stack_object(watcher: Watcher) -> None:
    with thread(lambda wait: wait()):
        first = watcher.see("subject")
        second = watcher.see("subject")
    assert first.thread.stack is second.thread.stack


def test_a_stack_deeper_than_the_limit_loses_its_root_and_says_so(choice: WalkerChoice) -> None:
    watcher = Watcher(choice, max_depth=10)
    with thread(lambda wait: deep(50, wait)):
        sample = watcher.see("subject")
    assert len(sample.thread.stack.frames) == 10
    assert sample.thread.stack.truncated
    assert sample.thread.stack.frames[-1].function == "deep"


def test_a_stack_exactly_as_deep_as_the_limit_is_whole(choice: WalkerChoice) -> None:
    with thread(lambda wait: deep(5, wait)):
        whole = Watcher(choice).see("subject").thread.stack
        exact = Watcher(choice, max_depth=len(whole.frames)).see("subject").thread.stack
    assert len(exact.frames) == len(whole.frames)
    assert not exact.truncated


def test_recursion_of_100000_levels_is_cut_at_the_limit(watcher: Watcher) -> None:
    limit = sys.getrecursionlimit()
    stack_size = threading.stack_size(512 * 1024 * 1024)
    sys.setrecursionlimit(200_000)
    try:
        with thread(lambda wait: deep(100_000, wait)):
            sample = watcher.see("subject")
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack_size)
    assert len(sample.thread.stack.frames) == 1024
    assert sample.thread.stack.truncated


def test_internal_threads_are_left_out_however_shallow_the_stacks_are(choice: WalkerChoice) -> None:
    names = ("splunk-profiler-exporter", "OtelBatchSpanRecordProcessor", "application")
    with ExitStack() as threads:
        for name in names:
            threads.enter_context(thread(lambda wait: wait(), name))
        seen = {sample.thread.thread.name for sample in Watcher(choice, max_depth=1).look().samples}
        everything = Watcher(choice, max_depth=1, include_internal=True).look()
    assert seen & {*names} == {"application"}
    assert {*names} <= {sample.thread.thread.name for sample in everything.samples}


def test_threads_that_run_c_code_alone_are_left_out_by_their_names(watcher: Watcher) -> None:
    names = ("Thread-1 (_poll_wrapper)", "OtelBatchSpanRecordProcessor", "Thread-1 (get)")
    letters, run = queue.SimpleQueue[None](), threading.Thread.run.__code__
    subjects = [threading.Thread(target=letters.get, name=name) for name in names]
    for subject in subjects:
        subject.start()
        while (top := top_frame(subject.ident or 0)).f_code is not run or top.f_lineno == run.co_firstlineno:
            os.sched_yield()
    seen = {sample.thread.thread.name for sample in watcher.look().samples}
    for _ in subjects:
        letters.put(None)
    for subject in subjects:
        subject.join()
    assert seen & {*names} == {"Thread-1 (get)"}


def test_threads_come_oldest_first_and_keep_their_index(watcher: Watcher) -> None:
    with thread(lambda wait: wait(), "first"), thread(lambda wait: wait(), "second"):
        for _ in range(2):
            found = [sample.thread.thread for sample in watcher.look().samples]
            names = [seen.name for seen in found]
            assert names.index("MainThread") < names.index("first") < names.index("second")
            assert [seen.index for seen in found] == sorted(seen.index for seen in found)
    with thread(lambda wait: wait(), "third"):
        assert watcher.see("third").thread.thread.index > max(seen.index for seen in found)


def test_a_thread_is_described_by_its_ids_its_age_and_its_cpu_time(watcher: Watcher) -> None:
    with thread(lambda wait: wait()) as subject:
        seen = watcher.see("subject").thread
    assert seen.thread.ident == subject.ident
    assert seen.thread.native_id == subject.native_id
    assert seen.cpu_ns > 0
    assert seen.start_ns is not None
    main = watcher.see("MainThread").thread
    assert main.thread.native_id == os.getpid()
    assert main.start_ns is not None
    assert 0 < main.start_ns <= seen.start_ns
    assert main.os_priority == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_thread_that_used_cpu_runs_and_one_that_waits_says_for_what(watcher: Watcher) -> None:
    over = threading.Event()
    subject = threading.Thread(target=over.wait, name="subject")
    subject.start()
    watcher.look()
    for _ in range(1000):  # it uses some CPU on its way into the wait
        sum(range(200_000))
        samples = {sample.thread.thread.name: sample.thread for sample in watcher.look().samples}
        assert samples["MainThread"].running
        if not samples["subject"].running:
            break
    over.set()
    subject.join()
    assert not samples["subject"].running
    assert samples["subject"].waiting_on == "condition"


def test_a_sample_stands_for_what_its_thread_has_used_since_the_one_before(watcher: Watcher) -> None:
    first = watcher.see("MainThread").thread
    assert (first.wall_delta_ns, first.cpu_delta_ns) == (0, 0)  # charging starts with the first snapshot
    sum(range(500_000))
    second = watcher.see("MainThread").thread
    assert second.cpu_delta_ns == second.cpu_ns - first.cpu_ns
    assert second.cpu_delta_ns > 0
    assert second.wall_delta_ns > 0


def test_new_thread_gets_the_time_since_the_last_snapshot_and_all_its_cpu(
    watcher: Watcher,
) -> None:
    begun_ns = time.monotonic_ns()
    watcher.look()
    with thread(lambda wait: wait()):
        seen = watcher.see("subject").thread
    assert 0 < seen.wall_delta_ns <= time.monotonic_ns() - begun_ns
    assert seen.cpu_delta_ns == seen.cpu_ns


def test_a_renamed_thread_is_seen_under_its_new_name(watcher: Watcher) -> None:
    with thread(lambda wait: wait()) as subject:
        before = watcher.see("subject").thread.thread
        subject.name = "renamed"
        after = watcher.see("renamed").thread.thread
    assert before.index == after.index


def test_a_thread_that_threading_does_not_know_has_the_systems_name(watcher: Watcher) -> None:
    ready: queue.SimpleQueue[int] = queue.SimpleQueue()
    over = _thread.allocate_lock()
    over.acquire()

    def body() -> None:
        ctypes.CDLL(None).prctl(15, b"made-elsewhere", 0, 0, 0)
        ready.put(_thread.get_ident())
        over.acquire()
        ready.put(0)

    _thread.start_new_thread(body, ())
    ident = ready.get()
    (sample,) = [sample for sample in watcher.look().samples if sample.thread.thread.ident == ident]
    over.release()
    ready.get()
    known = sample.thread.thread.native_id != 0  # CPython 3.10 and the portable walker cannot know it
    assert sample.thread.thread.name == ("made-elsewhere" if known else f"Thread-{ident:#x}")
    assert known == (type(watcher.ticker).__name__ == "Ticker" and sys.version_info >= (3, 11))


def test_a_subclass_whose_name_raises_does_no_harm(watcher: Watcher) -> None:
    class Hostile(threading.Thread):
        @property
        def name(self) -> str:
            raise RuntimeError("mine")

        @name.setter
        def name(self, value: str) -> None: ...

    here, over = threading.Event(), threading.Event()

    def body() -> None:
        here.set()
        over.wait()

    subject = Hostile(target=body)
    vars(subject)["_name"] = "inner"
    subject.start()
    here.wait()
    try:
        assert watcher.see("inner").thread.thread.ident == subject.ident
    finally:
        over.set()
        subject.join()


def test_spans_are_joined_to_the_threads_that_hold_them(watcher: Watcher) -> None:
    tracer = TracerProvider().get_tracer("test")
    expected = {}

    def in_span(wait: Callable[[], None]) -> None:
        with tracer.start_as_current_span("held") as span:
            context = span.get_span_context()
            expected["held"] = (context.trace_id, context.span_id, int(context.trace_flags))
            wait()

    with thread(in_span, "held"), thread(lambda wait: wait(), "without"):
        samples = {sample.thread.thread.name: sample.span for sample in watcher.look().samples}
    held = samples["held"]
    assert held is not None
    assert (held.trace_id, held.span_id, held.trace_flags) == expected["held"]
    assert samples["without"] is None
    assert samples["MainThread"] is None


def test_new_thread_with_an_old_ident_does_not_inherit_the_ended_ones_span(watcher: Watcher) -> None:
    tracer = TracerProvider().get_tracer("test")

    def never_detached(wait: Callable[[], None]) -> None:
        spans.runtime_context().attach(trace.set_span_in_context(tracer.start_span("lost")))
        wait()

    idents = []
    for _ in range(50):
        with thread(never_detached, "old") as old:
            assert watcher.see("old").span is not None
            idents.append(old.ident)
        with thread(lambda wait: wait(), "new") as new:
            assert watcher.see("new").span is None
            if new.ident in idents:
                return
    pytest.fail("no ident was given again in 50 rounds")


def test_an_unsampled_span_is_carried_with_its_flags(watcher: Watcher) -> None:
    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0))

    def body(wait: Callable[[], None]) -> None:
        with trace.use_span(trace.NonRecordingSpan(context)):
            wait()

    with thread(body):
        span = watcher.see("subject").span
    assert span is not None
    assert (span.trace_id, span.span_id, span.trace_flags) == (1, 2, 0)
