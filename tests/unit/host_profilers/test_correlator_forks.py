"""Tests of forks while an exporter runs on the correlator's thread."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

import pytest
from correlator_bench import WAIT_S, CorrelatorBench
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from splunk_profiler.system.threads import wait_until


class Locking(SpanProcessor):
    """A processor that exports under a lock and waits there for `go_on`."""

    def __init__(self) -> None:
        self.span_exporter = self  # marks it as an exporting processor
        self.lock = threading.Lock()
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.ended: list[str] = []

    def export(self) -> None:
        """Make this an exporter."""

    def on_end(self, span: ReadableSpan) -> None:
        with self.lock:
            self.entered.release()
            assert self.go_on.acquire(timeout=WAIT_S)
            self.ended.append(span.name)


@pytest.fixture
def locking(tmp_path: Any) -> Any:
    bench = CorrelatorBench(tmp_path, at_once=True, resource={})
    processor = Locking()
    bench.provider.add_span_processor(processor)
    bench.register()
    yield bench, processor
    for _ in range(10):
        processor.go_on.release()
    bench.end()


def test_fork_waits_for_exporters_on_our_thread_and_no_export_begins(
    locking: tuple[CorrelatorBench, Locking],
) -> None:
    bench, processor = locking
    bench.tracer.start_span("one").end()
    assert processor.entered.acquire(timeout=WAIT_S)
    found: list[bool] = []

    def fork() -> None:
        bench.correlator.hold_for_fork(WAIT_S)
        bench.tracer.start_span("two").end()
        found.append(processor.lock.locked())
        bench.correlator.release_after_fork()

    forking = threading.Thread(target=fork)
    forking.start()
    processor.go_on.release()
    forking.join(WAIT_S)
    assert found == [False]
    assert processor.entered.acquire(timeout=WAIT_S)
    processor.go_on.release()
    bench.provider.force_flush()
    assert processor.ended == ["one", "two"]


def test_no_export_begins_while_a_fork_waits_for_the_one_before(
    locking: tuple[CorrelatorBench, Locking],
) -> None:
    bench, processor = locking
    for name in ("one", "two", "three"):
        bench.tracer.start_span(name).end()
    assert processor.entered.acquire(timeout=WAIT_S)
    found: list[list[str]] = []

    def fork() -> None:
        bench.correlator.hold_for_fork(WAIT_S)
        found.append(processor.ended.copy())
        bench.correlator.release_after_fork()

    forking = threading.Thread(target=fork)
    forking.start()
    assert wait_until(lambda: "wait_until" in functions_of(forking), WAIT_S)
    for _ in range(3):
        processor.go_on.release()
    forking.join(WAIT_S)
    assert found == [["one"]]
    bench.provider.force_flush()
    assert processor.ended == ["one", "two", "three"]


def functions_of(thread: threading.Thread) -> list[str]:
    """Return the names of the functions on the stack of a thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    return [each.f_code.co_name for each, _ in traceback.walk_stack(frame)] if frame else []


def test_hanging_exporter_delays_one_fork_and_no_later_one(
    locking: tuple[CorrelatorBench, Locking],
) -> None:
    bench, processor = locking
    bench.tracer.start_span("one").end()
    assert processor.entered.acquire(timeout=WAIT_S)
    bench.correlator.hold_for_fork(0.01)
    bench.correlator.release_after_fork()
    bench.correlator.hold_for_fork(threading.TIMEOUT_MAX)  # returns at once, or never
    bench.correlator.release_after_fork()
    processor.go_on.release()
    bench.provider.force_flush()
    bench.correlator.hold_for_fork(WAIT_S)
    assert not processor.lock.locked()
    bench.correlator.release_after_fork()


def test_an_exporter_may_fork_itself(locking: tuple[CorrelatorBench, Locking]) -> None:
    bench, processor = locking

    class Forking(SpanProcessor):
        exporter = processor

        def on_end(self, span: ReadableSpan) -> None:
            bench.correlator.hold_for_fork(threading.TIMEOUT_MAX)
            bench.correlator.release_after_fork()
            processor.ended.append(f"forked in {span.name}")

    processor.go_on.release()
    bench.provider.add_span_processor(Forking())
    bench.tracer.start_span("one").end()
    bench.provider.force_flush()
    assert sorted(processor.ended) == ["forked in one", "one"]
