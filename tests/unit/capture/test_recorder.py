"""The recorder of a stream: nothing is lost by an error, a rename or a new beginning, and what is kept is bounded."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder, to_boottime_ns
from splunk_profiler.model import Event, Frame, SpanRef, Stack
from splunk_profiler.raw import RawEvent, RawSnapshot, RawThread
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, ProcessStarted, ResourceChanged
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import CAPACITY, EndpointRecord, EndRecord, LostRecord, TraceRecord
from splunk_profiler.system.clocks import boottime_ns

STACK = Stack((Frame("shop", "work", "shop.py", 7),), truncated=False)
SPAN = SpanRef(1, 2, 1, 3, "GET /")
GC = Event(GC_KIND, (("gc.generation", 2),), 3, 4)


def thread(key: int, *, cpu_ns: int = 5, state: int | None = 0, **more: Any) -> RawThread:
    return RawThread(key, 0x7000 + key, more.pop("native_id", 0), STACK, None, None, cpu_ns, state)._replace(**more)


def snapshot(*threads: RawThread, is_focused: bool = False) -> RawSnapshot:
    return RawSnapshot(time.time_ns(), 0, threads, 100, is_focused, 100, 7, boottime_ns())


class Bench:
    """A recorder and the reader of its stream."""

    def __init__(self, contexts: ContextReader | None = None, *, reads_nice: bool = False) -> None:
        contexts = contexts or ContextReader(lambda context: context)
        self.recorder = StreamRecorder(contexts, is_native=False, reads_nice=reads_nice)
        self.reader = StreamReader()
        self.recorder.record_start({})
        assert [type(item) for item in self.read()] == [ProcessStarted]

    def read(self) -> list[Any]:
        return [*self.reader.feed(self.recorder.take())]

    def see(self, *threads: RawThread, is_focused: bool = False) -> CapturedSnapshot:
        self.recorder.record_snapshot(snapshot(*threads, is_focused=is_focused))
        self.recorder.record_renamed_threads()
        (found,) = (item for item in self.read() if isinstance(item, CapturedSnapshot))
        return found

    def hear(self, raw_thread: RawThread) -> CapturedEvent:
        self.recorder.record_event(RawEvent(time.time_ns(), raw_thread, GC))
        (found,) = self.read()
        assert isinstance(found, CapturedEvent)
        return found


def numbers(found: CapturedSnapshot) -> list[int]:
    return [state.number for state in found.threads]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_first_snapshot_is_complete_and_later_ones_have_the_changes(bench: Bench) -> None:
    first = bench.see(thread(1), thread(2))
    assert (first.is_complete, numbers(first), first.ended) == (True, [1, 2], [])
    assert (first.period_ns, first.process_cpu_ns, first.is_focused) == (100, 7, False)
    bench.see(thread(1), thread(2))
    third = bench.see(thread(1), thread(2, cpu_ns=9))
    assert (third.is_complete, numbers(third), third.ended) == (False, [2], [])
    assert numbers(bench.see(thread(1), thread(2, cpu_ns=9))) == [2]
    assert bench.see(thread(2, cpu_ns=9)).ended == [1]


def test_resource_with_a_huge_value_is_recorded_with_the_beginning_of_it(bench: Bench) -> None:
    attributes = {"process.command_line": "x" * (5 << 20), "process.pid": 7, "service.name": "shop"}
    bench.recorder.record_resource(attributes, "", is_final=True)
    assert bench.read() == [ResourceChanged(True, {**attributes, "process.command_line": "x" * 4095 + "…"}, "")]
    bench.recorder.restart()
    assert any(isinstance(item, ResourceChanged) for item in bench.read())


def test_focused_snapshot_says_nothing_of_other_threads(bench: Bench) -> None:
    bench.see(thread(1), thread(2))
    focused = bench.see(thread(2), thread(3), is_focused=True)
    assert (focused.is_focused, focused.is_complete, numbers(focused), focused.ended) == (True, False, [2, 3], [])
    following = bench.see(thread(1), thread(2), thread(3))
    assert (numbers(following), following.ended) == ([1, 2, 3], [])  # 3 is still 3


def test_thread_that_is_back_after_a_snapshot_without_it_keeps_its_number(bench: Bench) -> None:
    bench.see(thread(1), thread(2))
    assert bench.see(thread(1)).ended == [2]
    for _ in range(3):
        assert set(numbers(bench.see(thread(1), thread(2)))) <= {1, 2}
    assert bench.see(thread(1)).ended == [2]


def test_error_in_a_snapshot_makes_the_next_one_complete(bench: Bench) -> None:
    idle, worker = thread(1), thread(2, context=SPAN, state=2)
    for _ in range(3):
        bench.see(idle, worker)
    for _ in range(2):
        with pytest.raises(AttributeError, match="frames"):
            bench.recorder.record_snapshot(snapshot(idle, worker, thread(3, stack=None)))
    assert bench.read() == [LostRecord(1)] * 2
    found = bench.see(idle, worker, thread(4))
    assert (found.is_complete, numbers(found)[:2]) == (True, [1, 2])
    assert found.threads[0].info.thread.ident == idle.ident
    assert (bench.see(idle, worker, thread(4)).is_complete, bench.see(idle, worker).ended) == (
        False,
        [numbers(found)[2]],
    )


def test_error_in_a_focused_snapshot_leaves_the_others_as_they_are(bench: Bench) -> None:
    for _ in range(3):
        bench.see(thread(1))
    with pytest.raises(AttributeError, match="frames"):
        bench.recorder.record_snapshot(snapshot(thread(1, stack=None), is_focused=True))
    found = bench.see(thread(1))
    assert numbers(found) == ([1] if found.is_complete else [])


@pytest.mark.parametrize("odd", [None, SPAN._replace(trace_id=-1), SPAN._replace(endpoint="x" * (4 << 20))])
def test_span_that_cannot_be_recorded_is_missing_on_its_thread_alone(odd: SpanRef | None) -> None:
    def span_of(context: Any) -> SpanRef | None:
        if context is None:
            raise ValueError("of the span")
        return context  # type: ignore[no-any-return]

    bench = Bench(ContextReader(lambda context: span_of(*context)))
    for _ in range(2):
        found = bench.see(thread(1, context=(odd,), state=2), thread(2, context=(SPAN,), state=2))
        assert [state.span for state in found.threads] == [None, SPAN]


def test_labels_that_cannot_be_read_are_missing_on_their_thread_alone() -> None:
    bench = Bench(ContextReader(lambda context: context, labels_of=lambda pairs: tuple(pairs.items())))
    found = bench.see(thread(1, labels=7), thread(2, labels={"tenant": "acme"}))
    assert [dict(state.labels) for state in found.threads] == [{}, {"tenant": "acme"}]


def test_thread_with_a_name_without_end_has_the_beginning_of_it(bench: Bench) -> None:
    python_thread = threading.Thread(name="x" * (4 << 20))
    found = bench.see(thread(1, python_thread=python_thread))
    assert found.threads[0].info.thread.name == "x" * 4095 + "…"
    python_thread.name = "y" * (4 << 20)
    bench.see(thread(1))
    assert found.threads[0].info.thread.name == "y" * 4095 + "…"


def test_number_that_no_field_can_hold_costs_one_snapshot(bench: Bench) -> None:
    bench.see(thread(1))
    with pytest.raises(ValueError, match="SnapshotRecord"):
        bench.recorder.record_snapshot(snapshot(thread(1, cpu_ns=2**64)))
    bench.read()
    assert bench.see(thread(1)).is_complete


def test_idle_thread_that_is_renamed_has_its_new_name_in_the_stream(bench: Bench) -> None:
    python_thread = threading.Thread(name="before")
    first = bench.see(thread(1, python_thread=python_thread))
    assert first.threads[0].info.thread.name == "before"
    for _ in range(2):
        bench.see(thread(1))
    python_thread.name = "after"
    assert numbers(bench.see(thread(1))) == []
    assert first.threads[0].info.thread.name == "after"


def test_event_of_a_thread_that_was_in_no_snapshot_has_its_number_then(bench: Bench) -> None:
    heard = bench.hear(thread(5))
    assert bench.see(thread(4), thread(5)).threads[1].info is heard.thread.info


def test_event_of_a_thread_that_has_just_ended_is_of_that_thread(bench: Bench) -> None:
    first = bench.see(thread(1), thread(2))
    bench.see(thread(1))
    heard = bench.hear(thread(2))
    assert heard.thread.info is first.threads[1].info
    assert (heard.event.labels, heard.event.count, heard.event.amount) == (GC.labels, 3, 4)


@pytest.mark.parametrize("capture", ["focused", "event", "ended"])
def test_thread_of_the_application_is_not_kept_alive(bench: Bench, capture: str) -> None:
    python_thread = threading.Thread()
    ref, captured = weakref.ref(python_thread), [thread(1, python_thread=python_thread)]
    if capture == "event":
        bench.hear(captured.pop())
    else:
        bench.see(captured.pop(), is_focused=capture == "focused")
    if capture == "ended":
        assert bench.see().ended == [1]
    del python_thread
    gc.collect()
    assert ref() is None


def test_events_leave_nothing_for_the_next_snapshot(bench: Bench) -> None:
    raw_thread = thread(int("1000000"))  # an object of its own
    references = []
    for _ in range(3):
        bench.hear(raw_thread)
        references.append(sys.getrefcount(raw_thread.key))
    assert references == references[:1] * 3


def test_thread_whose_class_has_a_length_has_its_name(bench: Bench) -> None:
    class Pool(threading.Thread):
        def __len__(self) -> int:
            return 0

    found = bench.see(thread(1))
    bench.see(thread(1, python_thread=Pool(name="pool"), state=2))
    assert found.threads[0].info.thread.name == "pool"


def restarted(bench: Bench) -> list[Any]:
    """Begin anew, with the last piece lost."""
    bench.recorder.take()
    bench.recorder.restart()
    return bench.read()


def test_new_beginning_says_what_is_lost_and_all_that_lasts(bench: Bench) -> None:
    bench.recorder.record_resource({"service.name": "shop"}, "", is_final=True)
    bench.recorder.record_trace_selected(1, 2, 3, 4)
    bench.recorder.record_trace_selected(5, 6, 7, 8)
    bench.recorder.record_trace_ended(5, 9)
    for _ in range(3):
        bench.see(thread(1), thread(2))
    bench.recorder.record_snapshot(snapshot(thread(1)))
    found = restarted(bench)
    assert [type(item) for item in found] == [ProcessStarted, ResourceChanged, TraceRecord, LostRecord]
    assert found[2].trace_id == 1
    assert found[3].snapshots == 1
    again = bench.see(thread(1), thread(3))
    assert (again.is_complete, numbers(again)) == (True, [1, 3])
    assert bench.see(thread(1), thread(3)).ended == []


def test_snapshots_that_the_ring_lost_are_said_before_the_next_one(bench: Bench) -> None:
    bench.recorder.record_snapshot(snapshot(thread(1))._replace(lost_count=5))
    lost, *_, seen = bench.read()
    assert (lost, type(seen)) == (LostRecord(5), CapturedSnapshot)
    bench.recorder.restart(is_paused=True)
    bench.recorder.record_snapshot(snapshot(thread(1))._replace(lost_count=2))
    assert [item for item in bench.read() if isinstance(item, LostRecord)] == [LostRecord(6)]
    bench.recorder.restart()
    assert LostRecord(6 + 2 + 1) in bench.read()


def test_new_beginning_that_is_lost_too_is_counted_with_the_next(bench: Bench) -> None:
    bench.see(thread(1))
    for _ in range(2):
        bench.recorder.record_snapshot(snapshot(thread(1)))
        bench.recorder.take()
        bench.recorder.restart()
    bench.recorder.record_snapshot(snapshot(thread(1)))
    assert [item.snapshots for item in restarted(bench) if isinstance(item, LostRecord)] == [3]
    assert [item.snapshots for item in restarted(bench) if isinstance(item, LostRecord)] == []


def test_new_beginning_for_another_reader_needs_nothing_from_before(bench: Bench) -> None:
    bench.see(thread(1, context=SPAN), thread(2))
    bench.recorder.restart()
    bench.reader = StreamReader()
    found = bench.see(thread(1, context=SPAN), thread(2))
    assert [state.span for state in found.threads] == [SPAN, None]


@pytest.mark.parametrize("known_by", ["snapshot", "event", "its end"])
def test_event_after_a_new_beginning_finds_its_thread(bench: Bench, known_by: str) -> None:
    if known_by == "event":
        bench.hear(thread(2))
    else:
        bench.see(thread(1), thread(2))
    if known_by == "its end":
        bench.see(thread(1))
    restarted(bench)
    assert bench.hear(thread(2)).thread.info.thread.ident == thread(2).ident


def named_roots() -> tuple[ContextReader, dict[int, tuple[str, bool]]]:
    names = {3: ("GET /", False)}
    return ContextReader(lambda context: context, endpoint_of=lambda root: names.get(root, ("", True))), names


def test_endpoint_is_told_when_it_changes_until_it_is_final() -> None:
    contexts, names = named_roots()
    bench = Bench(contexts)
    bench.see(thread(1, context=SPAN))

    def told() -> list[Any]:
        bench.recorder.record_endpoints()
        return bench.read()

    assert told() == []
    names[3] = ("GET /cart", False)
    assert (told(), told()) == ([EndpointRecord(3, "GET /cart")], [])
    names[3] = ("GET /cart/{id}", True)
    assert (told(), told()) == ([EndpointRecord(3, "GET /cart/{id}")], [])
    names[3] = ("never asked for again", False)
    assert told() == []
    bench.see(thread(1, context=SPAN, state=2))  # its name in samples is not this one
    assert told() == [EndpointRecord(3, "never asked for again")]


def test_endpoints_that_are_asked_for_are_bounded() -> None:
    asked: list[int] = []

    def endpoint_of(root: int) -> tuple[str, bool]:
        asked.append(root)
        return "", False

    bench = Bench(ContextReader(lambda context: context, endpoint_of=endpoint_of))
    for first in range(1, 10_001, 100):
        contexts = [SPAN._replace(local_root_id=root, endpoint="") for root in range(first, first + 100)]
        bench.see(*(thread(key, context=context, state=2) for key, context in enumerate(contexts, 1)))
    bench.recorder.record_endpoints()
    assert asked == [*range(10_001 - 4096, 10_001)]


def test_endpoint_of_an_idle_thread_is_told_after_a_new_beginning() -> None:
    contexts, names = named_roots()
    bench = Bench(contexts)
    bench.see(thread(1, context=SPAN))
    names[3] = ("GET /cart", False)
    bench.recorder.record_endpoints()
    restarted(bench)
    bench.see(thread(1, context=SPAN))
    bench.recorder.record_endpoints()
    assert bench.read() == [EndpointRecord(3, "GET /cart")]


@pytest.mark.parametrize("reads_nice", [True, False])
def test_nice_values_are_read_where_they_are_asked_for(reads_nice: bool) -> None:
    bench = Bench(reads_nice=reads_nice)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    ended = thread(2, native_id=2**31)
    found = bench.see(thread(1, native_id=os.getpid()), ended, thread(3, native_id=0))
    assert [state.nice for state in found.threads] == [own * reads_nice, 0, 0]


def test_instants_never_lie_in_the_future() -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert to_boottime_ns(time.time_ns() + 10**18) >= before_ns
    assert to_boottime_ns(time.time_ns() + 10**18) <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before_ns - 2 * 10**9 < to_boottime_ns(time.time_ns() - 10**9) < before_ns


def test_end_has_the_cpu_time_of_the_process(bench: Bench) -> None:
    before_ns = time.process_time_ns()
    bench.recorder.record_end()
    (end,) = bench.read()
    assert isinstance(end, EndRecord)
    assert before_ns <= end.process_cpu_ns <= time.process_time_ns()


def test_names_and_stacks_of_many_threads_are_written_once(bench: Bench) -> None:
    threads = [thread(key) for key in range(1, 1001)]
    sizes = []

    for _ in range(4):
        bench.recorder.record_snapshot(snapshot(*threads))
        sizes.append(len(bench.recorder.take()))
    assert sizes[0] > 2 * sizes[1] > 100 * sizes[2] == 100 * sizes[3]


def test_thread_that_outlives_many_others_never_breaks_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPACITY, "thread", 8)
    bench, python_thread = Bench(), threading.Thread(name="idle")
    first = bench.see(thread(1, state=2), thread(2, python_thread=python_thread))
    for key in range(3, 40):
        found = bench.see(thread(1, state=2), thread(2), thread(key))
        assert found.threads[0].number == first.threads[0].number
    python_thread.name = "renamed"
    bench.see(thread(1, state=2), thread(2), thread(40))
    found = bench.see(thread(1, state=2), thread(2, cpu_ns=9))
    assert [state.info.thread.name for state in found.threads][1] == "renamed"
