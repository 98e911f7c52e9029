"""The selection of traces: which, from when to when, and its bounds."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count

import pytest
from interrupted_lines import is_interrupted, is_interrupted_by_signal
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from splunk_profiler.otel import trace_selector
from splunk_profiler.otel.trace_selector import (
    MAX_ENTRIES,
    MAX_ENTRY_NS,
    SNAPSHOT_ATTRIBUTE,
    TraceChange,
    TraceSelector,
)
from splunk_profiler.pipeline.selected_traces import SelectedTraces
from splunk_profiler.stream.records import TraceEndRecord, TraceRecord

SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Ids(RandomIdGenerator):
    """A generator of trace ids with given last digits."""

    def __init__(self, last_digits: int) -> None:
        self._last_digits = last_digits
        self._numbers = count(1)

    def generate_trace_id(self) -> int:
        return next(self._numbers) << 28 | self._last_digits


class Bench:
    """A provider with a trace selector."""

    def __init__(self, probability: float, last_digits: int = 0) -> None:
        self.now_ns = 0
        self.notified = 0
        self.trace_selector = TraceSelector(probability, lambda: self.now_ns)
        self.provider = TracerProvider(id_generator=Ids(last_digits), shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("tests")
        self.trace_selector.begin(self._notice)
        self.trace_selector.attach(self.provider)

    def tell(self, told: SelectedTraces) -> list[TraceChange]:
        """Apply the changes, as a stream brings them, and return them."""
        changes = self.trace_selector.take_changes()
        for trace_id, time_ns, entry in changes:
            if entry is None:
                told.end(TraceEndRecord(trace_id, time_ns))
            else:
                assert time_ns == entry.time_ns
                told.select(TraceRecord(trace_id, *entry))
        return changes

    def _notice(self) -> None:
        self.notified += 1

    def start(self, parent: SpanContext | None = None) -> trace.Span:
        context = None if parent is None else trace.set_span_in_context(NonRecordingSpan(parent))
        return self.tracer.start_span("entry", context=context)

    @property
    def traces(self) -> set[int]:
        return set(self.trace_selector.traces)


@pytest.fixture
def all_of_them() -> Iterator[Bench]:
    bench = Bench(1)
    yield bench
    bench.trace_selector.end()
    bench.trace_selector.detach()


def _is_marked(span: trace.Span) -> bool:
    return bool(getattr(span, "attributes", {}).get(SNAPSHOT_ATTRIBUTE))


@pytest.mark.parametrize(
    ("probability", "last_digits", "selected"),
    [
        (0.0, 0, False),
        (0.01, 0, True),
        (0.01, int(0.01 * 0xFFFFFFF), True),
        (0.01, int(0.01 * 0xFFFFFFF) + 1, False),
        (0.5, 0x7FFFFFF, True),
        (0.5, 0x8000000, False),
        (1.0, 0xFFFFFFF, True),
    ],
)
def test_the_last_seven_digits_of_the_trace_id_decide(probability: float, last_digits: int, selected: bool) -> None:
    bench = Bench(probability, last_digits)
    span = bench.start()
    assert (len(bench.traces), bench.notified, _is_marked(span)) == (selected, selected, selected)


def test_about_as_many_traces_are_selected_as_were_asked_for() -> None:
    bench = Bench(0.1)
    tracer = TracerProvider(shutdown_on_exit=False)
    bench.trace_selector.attach(tracer)
    marked = 0
    for _ in range(2_000):
        span = tracer.get_tracer("tests").start_span("entry")
        marked += _is_marked(span)
        span.end()
    assert 120 <= marked <= 290  # six standard deviations each way


def test_a_trace_is_profiled_until_its_entry_span_ends(all_of_them: Bench) -> None:
    span = all_of_them.start()
    trace_id = span.get_span_context().trace_id
    before_ns = time.time_ns()
    told = SelectedTraces()
    all_of_them.tell(told)
    assert told.is_selected(trace_id, before_ns)
    assert told.has_selected(before_ns)
    assert told.entry(trace_id) is not None
    assert all_of_them.tell(told) == []
    span.end()
    assert all_of_them.traces == set()
    assert [(change.trace_id, change.entry_span) for change in all_of_them.tell(told)] == [(trace_id, None)]
    assert told.is_selected(trace_id, before_ns), "a sample of before may be read after"
    later_ns = time.time_ns() + 1
    assert not told.is_selected(trace_id, later_ns)
    assert (told.has_selected(before_ns), told.has_selected(later_ns)) == (True, False)


def test_spans_inside_of_the_process_are_no_entries(all_of_them: Bench) -> None:
    entry = all_of_them.start()
    child = all_of_them.start(entry.get_span_context())
    child.end()
    assert (_is_marked(entry), _is_marked(child)) == (True, False)
    assert all_of_them.traces == {entry.get_span_context().trace_id}


def test_a_trace_that_has_come_in_twice_is_profiled_until_both_have_ended(all_of_them: Bench) -> None:
    remote = SpanContext(0xA << 28, 0xB, is_remote=True, trace_flags=SAMPLED)
    first, second = all_of_them.start(remote), all_of_them.start(remote)
    assert (_is_marked(first), _is_marked(second)) == (True, True)
    first.end()
    assert all_of_them.traces == {remote.trace_id}
    second.end()
    assert all_of_them.traces == set()


def test_traces_that_are_not_sampled_are_not_selected(all_of_them: Bench) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    all_of_them.trace_selector.attach(provider)
    provider.get_tracer("tests").start_span("entry")
    assert all_of_them.traces == set()


def test_at_most_100_entries_are_profiled_at_once_and_the_others_counted(
    all_of_them: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    spans = [all_of_them.start() for _ in range(MAX_ENTRIES + 20)]
    assert [_is_marked(span) for span in spans] == [True] * MAX_ENTRIES + [False] * 20
    assert (len(all_of_them.traces), all_of_them.trace_selector.refused_count) == (MAX_ENTRIES, 20)
    with caplog.at_level("INFO", "splunk_profiler"):
        all_of_them.trace_selector.expire_entries()
        all_of_them.trace_selector.expire_entries()
    assert len(caplog.records) == 1
    spans[0].end()
    assert _is_marked(all_of_them.start())


def test_entries_that_never_end_make_room_after_ten_minutes(all_of_them: Bench) -> None:
    all_of_them.start()
    all_of_them.now_ns = MAX_ENTRY_NS
    late = all_of_them.start()
    all_of_them.trace_selector.expire_entries()
    assert len(all_of_them.traces) == 2
    all_of_them.now_ns += 1
    all_of_them.trace_selector.expire_entries()
    assert all_of_them.traces == {late.get_span_context().trace_id}


def test_spans_from_before_the_end_of_profiling_have_no_effect_after_it(all_of_them: Bench) -> None:
    span = all_of_them.start()
    all_of_them.trace_selector.end()
    assert all_of_them.traces == set()
    assert not _is_marked(all_of_them.start())
    all_of_them.trace_selector.begin(lambda: None)
    span.end()
    assert all_of_them.traces == set()


def test_entries_of_a_provider_that_another_has_replaced_are_given_up(all_of_them: Bench) -> None:
    all_of_them.start()
    all_of_them.trace_selector.attach(TracerProvider(shutdown_on_exit=False))
    assert all_of_them.traces == set(), "nobody will hear of their ends"


def test_what_fails_in_it_never_reaches_the_application(all_of_them: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> None:
        raise ValueError("mine")

    all_of_them.trace_selector.begin(failing)
    for _ in range(3):
        all_of_them.start().end()
    assert len(caplog.records) == 1
    assert all_of_them.traces == set()


def test_entries_of_many_threads_leave_nothing_behind(all_of_them: Bench) -> None:
    remote = SpanContext(0xA << 28, 0xB, is_remote=True, trace_flags=SAMPLED)

    def serve() -> None:
        for _ in range(300):
            spans = [all_of_them.start(remote), all_of_them.start()]
            for span in spans:
                span.end()

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_of_them.traces == set()
    assert all_of_them.trace_selector.refused_count == 0


@pytest.mark.parametrize("interrupt", [is_interrupted, is_interrupted_by_signal])
def test_wherever_a_signal_handler_raises_nothing_is_profiled_for_ever(
    all_of_them: Bench, interrupt: Callable[..., bool]
) -> None:
    for line in count(1):
        at_start = interrupt(all_of_them.start, trace_selector, line)
        other = all_of_them.start()
        at_end = interrupt(other.end, trace_selector, line)
        all_of_them.now_ns += MAX_ENTRY_NS + 1
        all_of_them.trace_selector.expire_entries()
        assert all_of_them.traces == set(), line
        if not at_start and not at_end:
            break
    spans = [all_of_them.start() for _ in range(MAX_ENTRIES)]
    assert all(_is_marked(span) for span in spans), "every place is free again"


_GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent
from opentelemetry.sdk.trace import TracerProvider
from splunk_profiler.otel.trace_selector import TraceSelector

selection, provider = TraceSelector(1), TracerProvider(shutdown_on_exit=False)
selection.begin(lambda: None)
selection.attach(provider)

def serve():
    span = provider.get_tracer("tests").start_span("entry")
    (_, _, beginning), = selection.take_changes()
    assert beginning.ident == monkey.get_original("_thread", "get_ident")(), beginning

gevent.spawn(serve).get()
"""


def test_more_changes_than_are_kept_leave_no_trace_selected_that_has_ended(all_of_them: Bench) -> None:
    told = SelectedTraces()
    ends, lives = all_of_them.start(), all_of_them.start()
    all_of_them.tell(told)
    ends.end()
    for _ in range(5000):
        all_of_them.start().end()
    late = all_of_them.start()
    changes = all_of_them.tell(told)
    assert len(changes) == 3
    now_ns = time.time_ns() + 1
    assert not told.is_selected(ends.get_span_context().trace_id, now_ns)
    for span in (lives, late):
        assert told.is_selected(span.get_span_context().trace_id, now_ns)
        span.end()
    all_of_them.tell(told)
    assert not told.has_selected(time.time_ns() + 1)


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_entry_with_a_greenlet_ident_begins_on_the_real_thread() -> None:
    done = subprocess.run([sys.executable, "-c", _GREENLETS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
