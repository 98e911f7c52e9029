"""The stream of a short real run: threads that work, wait, end and are renamed, spans, labels, an event, a trace."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from splunk_profiler.capture.events.allocations import ALLOCATION_KIND
from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.model import Event, SpanRef
from splunk_profiler.raw import Periods, RawEvent, RawSnapshot, TraceFilter
from splunk_profiler.stream.records import HEADER, FreedBlocksRecord

PERIODS = Periods(100_000_000, 10_000_000)
SPAN = SpanRef(0xABC << 64, 11, 1, 7, "GET /")
LABELS = (("tenant", "blue"), ("route", "/"))
_ROUNDS = 4  # snapshots of each of three stages
_CONTEXT: ContextVar[SpanRef] = ContextVar("span")
_LABELS: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("labels")


@dataclass(frozen=True)
class Recorded:
    """A stream in the pieces in which it was taken: one a snapshot, then the end."""

    pieces: tuple[bytes, ...]
    snapshot_count: int  # of all threads

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def record_ends(data: bytes) -> list[int]:
    """Return the end of the header and of each record, found without the decoder."""
    ends = [len(HEADER)]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 4 + struct.unpack_from("<I", data, ends[-1])[0])
    return ends


@contextmanager
def _waiting(name: str, before: Callable[[], object] = lambda: None) -> Iterator[threading.Thread]:
    ready, over = threading.Event(), threading.Event()

    def body() -> None:
        before()
        ready.set()
        over.wait()

    thread = threading.Thread(target=body, name=name)
    thread.start()
    ready.wait()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def _hold_span() -> None:
    _CONTEXT.set(SPAN)
    _LABELS.set(LABELS)


class _Run:
    """A ticker and a recorder, with the pieces of the stream."""

    def __init__(self, settings: dict[str, Any]) -> None:
        choice = choose_walker()
        self._spans: dict[int, SpanRef] = {}
        traces = TraceFilter({}, "span", lambda span: span.trace_id)
        self._traces = traces.traces
        self._ticker = make_ticker(choice, _CONTEXT, self._spans.get, 20, labels_var=_LABELS, trace_filter=traces)
        contexts = ContextReader(lambda context: context, lambda labels: labels, lambda _root: ("GET /cart", False))
        self.recorder = StreamRecorder(contexts, is_native=choice.name == "native")
        self.recorder.record_start(settings)
        self.recorder.record_resource({"service.name": "shop"}, "", is_final=True)
        self.pieces: list[bytes] = []
        self.count = 0

    def raw(self, *, is_focused: bool = False) -> RawSnapshot:
        sum(range(20_000))
        self._ticker.capture(is_focused=is_focused)
        (raw,) = self._ticker.drain(0)
        return raw

    def take(self, rounds: int = _ROUNDS) -> None:
        for _ in range(rounds):
            self.recorder.record_renamed_threads()
            self.recorder.record_snapshot(self.raw())
            self.recorder.record_endpoints()
            self.pieces.append(self.recorder.take())
            self.count += 1

    def note(self, holding: threading.Thread) -> None:
        """Record a trace with a focused snapshot, and an event."""
        self._traces[SPAN.trace_id] = None
        self._spans[holding.ident or 0] = SPAN  # for the portable walker
        raw = self.raw(is_focused=True)
        (thread,) = raw.threads
        self._traces.clear()
        self.recorder.record_trace_selected(SPAN.trace_id, raw.time_ns - 5_000_000, thread.ident, 0)
        self.recorder.record_snapshot(raw)
        event: Any = Event(GC_KIND, (("gc.generation", 2),), 3, 4_000_000)
        self.recorder.record_event(RawEvent(raw.time_ns, thread, event))
        self.recorder.record_trace_ended(SPAN.trace_id, raw.time_ns)

    def note_rest(self) -> None:
        """Record what a run of a moment has none of: quiet deadlines, lost snapshots, blocks that end or stay."""
        raw = self.raw()
        self.recorder.record_snapshot(raw)
        self.recorder.record_snapshot(raw._replace(quiet_count=3, period_ns=10_000_000))
        for live_id in (1, 2):
            event: Any = Event(ALLOCATION_KIND, (), 7, 3_000_000)
            self.recorder.record_event(RawEvent(raw.time_ns, raw.threads[0], event, live_id=live_id))
        self.recorder.record_event(FreedBlocksRecord([1]))
        self.recorder.record_snapshot(self.raw()._replace(lost_count=2))
        self.pieces.append(self.recorder.take())


def record_run(settings: dict[str, Any] | None = None, *, with_all: bool = False) -> Recorded:
    """Return the stream of a new run of this process, which says that these are its settings.

    With `with_all` it has a record of each type.
    """
    run = _Run(settings or {"service": "shop"})
    with _waiting("waits"):
        with _waiting("held", _hold_span) as held:
            run.take()
            run.note(held)
        with _waiting("ends") as ends:
            run.take(_ROUNDS - 1)
            ends.name = "renamed"
            run.take(1)
        run.take()
        if with_all:
            run.note_rest()
    run.recorder.record_end()
    run.pieces.append(run.recorder.take())
    return Recorded(tuple(run.pieces), run.count)
