"""Garbage collections as both walkers record them: thread, stack, duration, and bounds in a storm."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from stream_feed import StreamedBuilder

from splunk_profiler.capture.events import EventSources, make_sources
from splunk_profiler.capture.events.garbage_collections import GcEventSource
from splunk_profiler.capture.portable import PortableTicker
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.capture.walker import Ticker, choose_walker
from splunk_profiler.config import Config
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawEvent, RecordedEvent
from splunk_profiler.samples import Sample
from splunk_profiler.system.threads import Worker, active_threads

NEVER_NS = 1 << 62
MAX_KEPT, FOR_LONG, LONG_NS = 256, 64, 10_000_000
context: ContextVar[Any] = ContextVar("context")
labels: ContextVar[Any] = ContextVar("labels")


class Thing:
    """An object that weak references can refer to."""


Make = Callable[..., Ticker]


def portable_ticker(log: CollectionLog | None = None) -> PortableTicker:
    make_frame = Symbolizer().frame
    return PortableTicker(
        context_of=lambda _: None, max_depth=100, make_frame=make_frame, make_stack=Stack, ring_size=4, collections=log
    )


@pytest.fixture(params=["native", "portable"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a factory of tickers with a given interval between kept collections."""
    choice = choose_walker(request.param)
    if choice.name != request.param:
        pytest.skip(f"no native walker: {choice.reason}")

    def native(min_interval_ns: int = 0, max_depth: int = 100) -> Ticker:
        from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems

        ticker: Ticker = _walker.Ticker(
            context_var=context,
            labels_var=labels,
            max_depth=max_depth,
            make_frame=Symbolizer().frame,
            make_stack=Stack,
            ring_size=4,
            min_collection_interval_ns=min_interval_ns,
            threads=active_threads(),
        )
        return ticker

    def portable(min_interval_ns: int = 0, max_depth: int = 100) -> Ticker:
        return portable_ticker(CollectionLog(context, labels, max_depth, min_interval_ns))

    return native if request.param == "native" else portable


@pytest.fixture(autouse=True)
def only_wanted_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@contextmanager
def recording(ticker: Ticker) -> Iterator[GcEventSource]:
    """Record collections during the block."""
    events = GcEventSource(ticker)
    events.start()
    try:
        yield events
    finally:
        events.stop()


def noticed(ticker: Ticker, work: Callable[[], object]) -> list[RecordedEvent]:
    """Return the kept collections of `work`."""
    with recording(ticker):
        work()
    return [*ticker.drain_collections()]


def functions(collection: RecordedEvent) -> list[str]:
    return [frame.function for frame in collection.thread.stack.frames]


def collect_often(count: int, generation: int = 0) -> None:
    for _ in range(count):
        gc.collect(generation)


def test_collection_is_recorded_with_its_thread_stack_context_and_labels(make: Make) -> None:
    ticker, thing, other = make(), Thing(), Thing()
    idents = {}

    def checkout(name: str, value: object) -> None:
        idents[name] = threading.get_ident()
        context.set(value)
        labels.set(name)
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        gc.collect()

    def work() -> None:
        for name, value in (("one", thing), ("two", other)):
            thread = threading.Thread(target=checkout, args=(name, value))
            thread.start()
            thread.join()

    first, second = noticed(ticker, work)
    for seen, name, value in ((first, "one", thing), (second, "two", other)):
        assert functions(seen)[0] == "checkout"
        assert (seen.thread.labels, seen.thread.context, seen.thread.ident) == (name, value, idents[name])
        assert (seen.details[0], seen.event_count) == (2, 1)
        assert seen.event_amount > 0
    assert first.time_ns <= second.time_ns
    assert ticker.drain_collections() == []


def test_a_thread_has_the_key_that_it_has_in_snapshots(make: Make) -> None:
    ticker = make()
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    (seen,) = noticed(ticker, gc.collect)
    assert [raw.key for raw in snapshot.threads if raw.ident == threading.get_ident()] == [seen.thread.key]


def test_ended_thread_keeps_its_key_over_any_number_of_snapshots(make: Make) -> None:
    ticker = make()
    here, go_on = threading.Event(), threading.Event()

    def work() -> None:
        here.set()
        go_on.wait()
        gc.collect()

    thread = threading.Thread(target=work)
    thread.start()
    here.wait()
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    (key,) = [raw.key for raw in snapshot.threads if raw.ident == thread.ident]

    def end() -> None:
        go_on.set()
        thread.join()
        for _ in range(5):
            ticker.capture()

    (seen,) = [seen for seen in noticed(ticker, end) if functions(seen)[0] == "work"]
    assert seen.thread.key == key


def test_storm_of_collections_is_bounded_and_the_next_one_counts_the_rest(make: Make) -> None:
    ticker = make()
    kept = noticed(ticker, partial(collect_often, 5_000))
    most_short = MAX_KEPT - FOR_LONG
    assert [seen.event_count for seen in kept[:most_short]] == [1] * most_short
    assert all(seen.event_amount >= LONG_NS for seen in kept[most_short:])  # a short one may be slow on a busy machine
    (late,) = noticed(ticker, partial(collect_often, 1))
    assert late.event_count == 5_001 - sum(seen.event_count for seen in kept)


def test_after_a_storm_there_is_room_for_collections_that_take_long(make: Make) -> None:
    ticker = make()

    def long_one() -> None:
        ticker.on_gc_event("start", {"generation": 2})
        time.sleep(1.5 * LONG_NS / 1e9)  # during the collection
        ticker.on_gc_event("stop", {"generation": 2})

    def work() -> None:
        collect_often(1_000)
        for _ in range(FOR_LONG + 5):
            long_one()

    found = noticed(ticker, work)
    assert len(found) == MAX_KEPT
    assert all(seen.event_amount >= LONG_NS for seen in found[-FOR_LONG:])  # a short one may be slow on a busy machine
    kept = [seen for seen in found if seen.details[0] == 2]
    assert 1 <= len(kept) <= FOR_LONG
    assert all(functions(seen)[0] == "long_one" for seen in kept)
    assert [seen.event_count for seen in kept] == [1] * len(kept)


def test_one_in_a_while_is_kept_of_each_generation(make: Make) -> None:
    ticker = make(NEVER_NS)  # longer than the uptime of any machine
    assert noticed(ticker, partial(collect_often, 100)) == []
    ticker = make(1_000_000_000)

    def work() -> None:
        collect_often(50)
        collect_often(1, generation=2)
        collect_often(50)

    kept = noticed(ticker, work)
    assert [(seen.details[0], seen.event_count) for seen in kept if seen.details[0] == 2] == [(2, 1)]
    assert 1 <= len([seen for seen in kept if seen.details[0] == 0]) < 50


def test_frames_beyond_the_depth_are_cut_at_the_root_and_marked(make: Make) -> None:
    (seen,) = noticed(make(max_depth=1), partial(collect_often, 1))
    assert (functions(seen), seen.thread.stack.truncated) == (["collect_often"], True)
    (whole,) = noticed(make(max_depth=1000), partial(collect_often, 1))
    assert not whole.thread.stack.truncated


def test_end_without_a_start_and_unknown_generations_record_nothing(make: Make) -> None:
    ticker = make()
    ticker.on_gc_event("stop", {"generation": 0})
    for info in ({"generation": 3}, {"generation": -1}, {}):
        ticker.on_gc_event("start", info)
        ticker.on_gc_event("stop", info)
    assert ticker.drain_collections() == []


def test_a_stopped_ticker_keeps_none_and_gives_out_what_it_has(make: Make) -> None:
    ticker = make()
    with recording(ticker):
        gc.collect()
        ticker.stop()
        gc.collect()
    assert len(ticker.drain_collections()) == 1


def test_what_a_collection_had_in_its_hands_is_given_up(make: Make) -> None:
    ticker, thing = make(), Thing()
    alive = weakref.ref(thing)

    def work(value: object) -> None:
        context.set(value)
        labels.set(value)
        gc.collect()
        context.set(None)
        labels.set(None)

    with recording(ticker):
        thread = threading.Thread(target=work, args=(thing,))
        del thing
        thread.start()
        thread.join()
    assert alive() is not None
    del thread
    kept = ticker.drain_collections()
    assert kept[0].thread.labels is alive()
    del kept
    gc.collect()
    assert alive() is None


def test_a_ticker_that_is_garbage_with_collections_that_refer_to_it_goes(make: Make) -> None:
    def work(value: object) -> None:
        labels.set(value)
        gc.collect()

    def leave_garbage() -> weakref.ref[Thing]:
        ticker, thing = make(), Thing()
        with recording(ticker):
            thread = threading.Thread(target=work, args=([ticker, thing],))
            thread.start()
            thread.join()
        return weakref.ref(thing)

    alive = leave_garbage()
    gc.collect()
    assert alive() is None


def sampled(ticker: Ticker, work: Callable[[], object], **settings: Any) -> list[Sample]:
    """Return the samples of the collections of `work`."""
    capture = StreamedBuilder(labels_of=lambda found: found, **settings)
    with recording(ticker) as events:
        work()
    samples = capture.event_samples(events.drain())
    ticker.capture()
    snapshot = capture.snapshot(*ticker.drain(0))
    again = {sample.thread.thread.ident: sample.thread.thread for sample in snapshot.samples}
    here = [sample.thread.thread for sample in samples if sample.thread.thread.ident == threading.get_ident()]
    assert all(thread is again[thread.ident] for thread in here)
    return samples


def test_a_collection_becomes_a_sample_without_wall_and_cpu_time(make: Make) -> None:
    ticker = make()
    ticker.capture()  # the portable walker knows a thread once it has been in a snapshot
    ticker.drain(0)
    (sample,) = sampled(ticker, partial(collect_often, 1))
    assert sample.thread.stack.frames[0].function == "collect_often"
    assert (sample.thread.wall_delta_ns, sample.thread.cpu_delta_ns) == (0, 0)
    assert sample.event is not None
    assert sample.event.amount > 0


def test_thread_that_ended_before_the_next_snapshot_keeps_its_identity(make: Make) -> None:
    ticker = make()
    capture = StreamedBuilder()
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        collect_often(1, 2)  # other threads may collect generation 0

    thread = threading.Thread(target=work, name="shop")
    thread.start()
    begun.wait()  # `start` may return before the thread is in the table of names
    ticker.capture()
    capture.snapshot(*ticker.drain(0))
    with recording(ticker) as events:
        go_on.set()
        thread.join()
    ticker.capture()
    capture.snapshot(*ticker.drain(0))
    samples = capture.event_samples(events.drain())
    frames = {sample.thread.thread.name: {frame.function for frame in sample.thread.stack.frames} for sample in samples}
    assert [name for name, functions in frames.items() if "collect_often" in functions] == ["shop"]


def test_a_collection_on_an_internal_thread_shows_no_other_frames(make: Make) -> None:
    def work() -> None:
        worker = Worker("collecting", partial(collect_often, 1))
        worker.start()
        assert worker.join(60)

    (hidden,) = sampled(make(), work)
    assert [frame.function for frame in hidden.thread.stack.frames] == ["internal"]
    (shown,) = sampled(make(), work, include_internal=True)
    assert "_run" in [frame.function for frame in shown.thread.stack.frames]


def test_a_source_starts_and_stops_once_however_often_it_is_called() -> None:
    before = [*gc.callbacks]
    ticker = portable_ticker()
    config = Config(enabled=True, data_format="pprof-gzip-base64", gc_events="true")
    events = make_sources(config, ticker, native=False)
    events.start()
    events.start()
    assert len(gc.callbacks) == len(before) + 1
    gc.collect()
    (seen,) = events.drain()
    assert isinstance(seen, RawEvent)
    assert (seen.event.kind.name, seen.event.labels, seen.event.count) == ("gc", (("gc.generation", "2"),), 1)
    gc.callbacks.remove(ticker.on_gc_event)  # the application clears the list
    events.stop()
    events.stop()
    assert gc.callbacks == before
    nothing = EventSources([])
    nothing.start()
    nothing.stop()
    assert nothing.drain() == []


def test_error_in_the_callback_is_raised_once_to_the_worker_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    failures = [LookupError("once")]

    class FailingVar:
        def get(self, default: None) -> None:  # noqa: ARG002  # as `ContextVar.get`
            if failures:
                raise failures.pop()

    def hold_and_collect() -> weakref.ref[Thing]:
        local = Thing()
        collect_often(3)
        return weakref.ref(local)

    failing: Any = FailingVar()
    ticker = portable_ticker(CollectionLog(labels_var=failing, min_interval_ns=0))
    with recording(ticker):
        local = hold_and_collect()
    with pytest.raises(LookupError, match="once"):
        ticker.drain_collections()
    assert local() is None, "the error keeps what the functions held that were interrupted"
    assert [seen.event_count for seen in ticker.drain_collections()] == [2, 1]
    assert said == []
