"""The step from raw captures to the stream: asks the application's objects, once each, for what is new.

The sampler thread runs all of it. Imports neither configuration nor OpenTelemetry: callables
turn contexts into spans, and the values of the labels' variable into labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from splunk_profiler.capture.snapshot_writer import writer_type
from splunk_profiler.capture.thread_registry import ThreadInfo, ThreadRegistry, make_stat_reader
from splunk_profiler.model import SpanRef
from splunk_profiler.raw import RawEvent, RawSnapshot, RawThread
from splunk_profiler.stream.codec import StreamError
from splunk_profiler.stream.records import (
    MAX_QUIET_DEADLINES,
    EndpointRecord,
    EndRecord,
    EventRecord,
    FreedBlocksRecord,
    LostRecord,
    QuietRecord,
    ResourceRecord,
    StartRecord,
    ThreadRecord,
    TraceEndRecord,
    TraceRecord,
)
from splunk_profiler.stream.writer import Floors, Labels, StreamWriter, json_object
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.printable import shortened

_NOTHING_IS_VALID = Floors(*4 * ((1 << 32) - 1,))
_MAX_NAMED_ROOTS = 4096
_MAX_HELD_BYTES = 1 << 18


class ContextReader(NamedTuple):
    """Callables that turn contexts and labels into spans and label sets.

    Attributes:
        span_of: returns the span that is active in an OpenTelemetry context, or None.
        labels_of: turns the value of the user labels' variable into the labels of a sample.
        endpoint_of: returns the current name of a local root by its span id, and True if it is final; empty if it is
            not known any more.
    """

    span_of: Callable[[Any], SpanRef | None]
    labels_of: Callable[[Any], Labels] = lambda _value: ()
    endpoint_of: Callable[[int], tuple[str, bool]] = lambda _span_id: ("", True)


class StreamRecorder:
    """Records captures in a stream; `take` returns its bytes. While `is_paused`, captures are only counted as lost.

    Args:
        is_native: the snapshots are those of the native walker.
        reads_nice: read the nice values of threads, which only records of samples have.
    """

    def __init__(self, contexts: ContextReader, *, is_native: bool, reads_nice: bool = False) -> None:
        self._contexts = contexts
        self._writer = StreamWriter()
        self._snapshots = writer_type(native=is_native)(
            thread_number=self._seen_thread_number,
            stack_number=self._writer.stack,
            span_number=self._span_number,
            labels_number=self._labels_number,
            reads_nice=reads_nice,
        )
        self._guard = Guard("reading the span or the labels of a thread")
        self._threads = ThreadRegistry(make_stat_reader(native=is_native))
        self._instant_ns = 0  # of the capture that is recorded
        self._seen_keys: list[int] = []  # of threads whose numbers a snapshot has asked for
        self._is_complete_due = True  # the next snapshot has all threads
        self._total_count = 0
        self._snapshot_count = 0  # since the last `take`, those counted as lost included
        self._last_count = 0  # snapshots that the last `take` returned
        self.is_paused = False
        self._start: StartRecord | None = None
        self._resource: ResourceRecord | None = None
        self._traces: dict[int, TraceRecord] = {}  # those that are selected
        self._endpoints: dict[int, str] = {}  # of local roots that have not ended: id → name in the stream

    @property
    def has_samples(self) -> bool:
        """True once there is more than the first snapshot, the baseline of the others, or much of anything else."""
        return self._total_count > 1 or self._writer.pending_bytes > _MAX_HELD_BYTES

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        self._last_count, self._snapshot_count = self._snapshot_count, 0
        return self._writer.take()

    def restart(self, *, is_paused: bool = False) -> None:
        """Begin the stream anew: what was taken last has not arrived, or there is another reader.

        With `is_paused` it has no captures until the next call: definitions of what they need would be lost as well.
        """
        self.is_paused = is_paused
        self._writer.restart()
        for record in (self._start, self._resource, *self._traces.values()):
            if record is not None:
                self._writer.write(record)
        # They count again until this beginning has arrived: it may be lost as well.
        if lost := self._last_count + self._snapshot_count:
            self._writer.write(LostRecord(lost))
        self._snapshot_count, self._last_count = lost, 0
        self._is_complete_due = True
        self._endpoints = dict.fromkeys(self._endpoints, "")  # the names are recorded again, until the roots end

    def record_start(self, settings: Mapping[str, object]) -> None:
        """Record the process; first of all."""
        self._start = StartRecord(json_object(settings))
        self._writer.write(self._start)

    def record_resource(self, attributes: Mapping[str, object], schema_url: str, *, is_final: bool) -> None:
        """Record the resource from now on; one that is not final has what the profiler adds to the service's."""
        record = ResourceRecord(is_final, json_object(attributes), schema_url)
        try:
            self._writer.write(record)
        except StreamError:  # a value has megabytes
            short = {
                name: value if isinstance(value, int | float) else shortened(str(value))
                for name, value in attributes.items()
            }
            record = record._replace(attributes=json_object(short))
            self._writer.write(record)
        self._resource = record

    def record_end(self, timeout_s: float = 0) -> None:
        """Record the end of sampling; the process waits so many seconds until everything is sent on."""
        timeout_ns = max(int(timeout_s * 1e9), 0)
        self._writer.write(EndRecord(time.time_ns(), clocks.boottime_ns(), time.process_time_ns(), timeout_ns))

    def record_snapshot(self, raw: RawSnapshot) -> None:
        """Record a snapshot; after an error, it is lost and the next one has all threads."""
        self._record_loss(raw.lost_count)
        if self.is_paused:
            self._snapshot_count += raw.quiet_count or 1
            return
        if raw.quiet_count:
            self._record_quiet(raw)
            return
        try:
            self._write_snapshot(raw)
        except Exception:
            self._record_loss(1)
            raise

    def _record_quiet(self, raw: RawSnapshot) -> None:
        if self._is_complete_due or raw.lost_count:  # the snapshot that they repeat is not in the stream
            self._record_loss(raw.quiet_count)
            return
        left = raw.quiet_count
        while left:
            count = min(left, MAX_QUIET_DEADLINES)
            left -= count
            ago_ns = left * raw.period_ns
            times = (raw.time_ns - ago_ns, raw.instant_ns - ago_ns, raw.period_ns, raw.process_cpu_ns)
            self._writer.write(QuietRecord(*times, count))
        self._snapshot_count += raw.quiet_count

    def _record_loss(self, count: int) -> None:
        """Record that so many snapshots are lost; while paused, only count them."""
        self._snapshot_count += count
        if count and not self.is_paused:
            self._writer.write(LostRecord(count))

    def _write_snapshot(self, raw: RawSnapshot) -> None:
        is_complete, self._is_complete_due = self._writer.renew_numbers() or self._is_complete_due, True
        # In a complete one all is asked for anew: numbers may have begun anew.
        floors = _NOTHING_IS_VALID if is_complete else self._writer.floors
        self._instant_ns, self._seen_keys = raw.instant_ns, []
        record, ended_keys = self._snapshots.write(raw, is_complete, floors)
        self._writer.write_snapshot(record)
        self._is_complete_due = is_complete and raw.is_focused
        if not raw.is_focused:
            self._threads.keep(self._seen_keys, ended_keys)
        self._snapshot_count += 1
        self._total_count += 1

    def record_renamed_threads(self) -> None:
        """Record the names of threads that have changed since they were captured."""
        for info in self._threads.take_renamed():
            self._write_thread(info)

    def record_event(self, event: RawEvent | FreedBlocksRecord) -> None:
        """Record an event, after the snapshots that were captured before it."""
        if self.is_paused:
            return
        if isinstance(event, FreedBlocksRecord):
            self._writer.write(event)
            return
        self._instant_ns, thread = to_boottime_ns(event.time_ns), event.thread
        self._writer.write(
            EventRecord(
                event.time_ns,
                self._instant_ns,
                self._thread_number(thread),
                self._writer.stack(thread.stack),
                0 if thread.context is None else self._span_number(thread.context),
                self._labels_number(thread.labels, event.labels),
                self._writer.kind(event.event.kind),
                event.event.count,
                event.event.amount,
                event.live_id,
                _labels_text(event.event.labels),
            )
        )

    def record_endpoints(self) -> None:
        """Record the names of local roots that have changed since samples were taken in them."""
        for root, known in list(self._endpoints.items()):
            name, is_final = self._contexts.endpoint_of(root)
            if name and name != known:
                self._endpoints[root] = name
                self._writer.write(EndpointRecord(root, name))
            if is_final:
                del self._endpoints[root]

    def record_trace_selected(self, trace_id: int, time_ns: int, ident: int, cpu_ns: int) -> None:
        """Record that a trace is selected from a time of day on, on a thread that had used this CPU time."""
        record = self._traces[trace_id] = TraceRecord(trace_id, time_ns, ident, cpu_ns)
        self._writer.write(record)

    def record_trace_ended(self, trace_id: int, time_ns: int) -> None:
        """Record that a selected trace has ended."""
        self._traces.pop(trace_id, None)
        self._writer.write(TraceEndRecord(trace_id, time_ns))

    def _seen_thread_number(self, raw_thread: RawThread) -> int:
        self._seen_keys.append(raw_thread.key)
        return self._thread_number(raw_thread)

    def _thread_number(self, raw_thread: RawThread) -> int:
        info = self._threads.find(raw_thread)
        if info is None:
            info = self._threads.add(raw_thread, self._instant_ns)
            self._write_thread(info)
        elif info.update_name(raw_thread.python_thread) or not self._writer.knows_thread(info.number):
            self._write_thread(info)
        return info.number

    def _span_number(self, context: Any) -> int:
        try:
            span = self._contexts.span_of(context)
            if span is not None and span.local_root_id:
                self._note_root(span.local_root_id, span.endpoint)
            return self._writer.span(span)
        except Exception as error:  # a span of the application must not cost other threads their samples
            self._guard.note(error)
        return 0

    def _labels_number(self, labels: Any, further: Labels = ()) -> int:
        if labels is None and not further:
            return 0
        with self._guard.catching():  # nor must its labels
            own = () if labels is None else self._contexts.labels_of(labels)
            return self._writer.labels((*further, *own) if further else own)
        return 0

    def _note_root(self, root: int, name: str) -> None:
        if root not in self._endpoints:
            if len(self._endpoints) >= _MAX_NAMED_ROOTS:
                del self._endpoints[next(iter(self._endpoints))]
            self._endpoints[root] = name

    def _write_thread(self, info: ThreadInfo) -> None:
        self._writer.thread(ThreadRecord(info.number, info.ident, info.native_id, *info.start_ns, info.name))


@lru_cache(maxsize=256)
def _labels_text(labels: Labels) -> str:
    return json_object(dict(labels))


def to_boottime_ns(time_ns: int) -> int:
    """Return a time of day on the boot-time clock; never a future one, even if the time of day is changed."""
    return clocks.boottime_ns() - max(time.time_ns() - time_ns, 0)
