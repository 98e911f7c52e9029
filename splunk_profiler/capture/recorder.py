"""The step from raw captures to the stream: asks the application's objects, once each, for what is new.

The sampling worker's thread runs all of it. Imports neither configuration nor OpenTelemetry: callables
turn contexts into spans, and the values of the labels' variable into labels.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from splunk_profiler.capture.idle_tracker import IdleTracker
from splunk_profiler.capture.thread_registry import ThreadInfo, ThreadRegistry
from splunk_profiler.model import SpanRef
from splunk_profiler.raw import Periods, RawEvent, RawSnapshot, RawThread
from splunk_profiler.stream.records import (
    CHANGES,
    COMPLETE,
    FOCUSED,
    EndpointRecord,
    EndRecord,
    EventRecord,
    LostRecord,
    ResourceRecord,
    SnapshotRecord,
    StartRecord,
    ThreadEntry,
    ThreadRecord,
    TraceEndRecord,
    TraceRecord,
)
from splunk_profiler.stream.writer import Labels, StreamWriter, json_object
from splunk_profiler.system.clocks import boottime_ns
from splunk_profiler.system.threads import yield_gil

_YIELD_EVERY = 64  # threads between two offers of the GIL
_MAX_NAMED_ROOTS = 4096
_MAX_HELD_BYTES = 1 << 18


class ContextReader(NamedTuple):
    """The meaning of the application's objects.

    Attributes:
        span_of: returns the span that is active in an OpenTelemetry context, or None.
        labels_of: turns the value of the user labels' variable into the labels of a sample.
        endpoint_of: returns the current name of a local root by its span id, and True if it is final.
    """

    span_of: Callable[[Any], SpanRef | None]
    labels_of: Callable[[Any], Labels] = lambda _value: ()
    endpoint_of: Callable[[int], tuple[str, bool]] = lambda _span_id: ("", True)


class StreamRecorder:
    """Records captures in a stream; `take` returns its bytes.

    Args:
        reads_nice: read the nice values of threads, which only records of samples have.
    """

    def __init__(self, contexts: ContextReader, idle_tracker: IdleTracker, *, reads_nice: bool = False) -> None:
        self._contexts = contexts
        self._idle_tracker = idle_tracker
        self._reads_nice = reads_nice
        self._writer = StreamWriter()
        self._threads = ThreadRegistry()
        self._is_complete_due = True  # the next snapshot has all threads
        self._total_count = 0
        self._snapshot_count = 0  # since the last `take`
        self._last_count = 0  # in what was taken last
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

    def restart(self) -> None:
        """Begin the stream anew: what was taken last has not arrived, or there is another reader."""
        self._writer.restart()
        for record in (self._start, self._resource, *self._traces.values()):
            if record is not None:
                self._writer.write(record)
        if lost := self._last_count + self._snapshot_count:
            self._writer.write(LostRecord(lost))
        self._snapshot_count = self._last_count = 0
        self._is_complete_due = True
        self._endpoints.clear()

    def start(self, periods: Periods, settings: Mapping[str, object]) -> None:
        """Record the process; first of all."""
        self._start = StartRecord(
            os.getpid(), time.time_ns(), periods.all_ns, periods.focused_ns, json_object(settings)
        )
        self._writer.write(self._start)

    def resource(self, attributes: Mapping[str, object], schema_url: str, *, is_final: bool) -> None:
        """Record the resource from now on; one that is not final has what the profiler adds to the service's."""
        self._resource = ResourceRecord(is_final, json_object(attributes), schema_url)
        self._writer.write(self._resource)

    def end(self, timeout_s: float = 0) -> None:
        """Record the end of sampling; the process waits so many seconds until everything is sent on."""
        timeout_ns = max(int(timeout_s * 1e9), 0)
        self._writer.write(EndRecord(time.time_ns(), boottime_ns(), time.process_time_ns(), timeout_ns))

    def snapshot(self, raw: RawSnapshot) -> None:
        """Record a snapshot; after an error, it is lost and the next one has all threads."""
        try:
            self._snapshot(raw)
        except Exception:
            self._writer.write(LostRecord(1))
            raise

    def _snapshot(self, raw: RawSnapshot) -> None:
        instant_ns = to_boottime_ns(raw.time_ns)
        if raw.is_focused:
            entries = [self._entry(raw_thread, instant_ns) for raw_thread in raw.threads]
            self._write_snapshot(raw, instant_ns, FOCUSED, entries, [])
            return
        is_complete, self._is_complete_due = self._is_complete_due, True
        if is_complete:
            self._idle_tracker.clear()
        changes = self._idle_tracker.find_changes(raw.threads)
        entries = []
        for number, raw_thread in enumerate(changes.changed, 1):
            if number % _YIELD_EVERY == 0:
                yield_gil()
            entries.append(self._entry(raw_thread, instant_ns))
        for info in self._threads.take_renamed():
            self._write_thread(info)
        ended = self._threads.keep([one.key for one in changes.changed], None if is_complete else changes.ended)
        scope = COMPLETE if is_complete else CHANGES
        self._write_snapshot(raw, instant_ns, scope, entries, [info.number for info in ended])
        self._is_complete_due = False

    def events(self, events: Sequence[RawEvent]) -> None:
        """Record events, after the snapshots that were captured before them."""
        for event in events:
            instant_ns = to_boottime_ns(event.time_ns)
            entry = self._entry(event.thread, instant_ns)
            kind, labels = self._writer.kind(event.event.kind), json_object(dict(event.event.labels))
            self._writer.write(
                EventRecord(event.time_ns, instant_ns, *entry[:4], kind, event.event.count, event.event.amount, labels)
            )

    def endpoints(self) -> None:
        """Record the names of local roots that have changed since samples were taken in them."""
        for root, known in list(self._endpoints.items()):
            name, is_final = self._contexts.endpoint_of(root)
            if name != known:
                self._endpoints[root] = name
                self._writer.write(EndpointRecord(root, name))
            if is_final:
                del self._endpoints[root]

    def trace_selected(self, trace_id: int, time_ns: int, ident: int, cpu_ns: int) -> None:
        """Record that a trace is selected from a time of day on, on a thread that had used this CPU time."""
        record = self._traces[trace_id] = TraceRecord(trace_id, time_ns, ident, cpu_ns)
        self._writer.write(record)

    def trace_ended(self, trace_id: int, time_ns: int) -> None:
        """Record that a selected trace has ended."""
        self._traces.pop(trace_id, None)
        self._writer.write(TraceEndRecord(trace_id, time_ns))

    def _entry(self, raw_thread: RawThread, instant_ns: int) -> ThreadEntry:
        info = self._threads.find(raw_thread)
        if info is None:
            info = self._threads.add(raw_thread, instant_ns)
            self._write_thread(info)
        elif info.update_name(raw_thread.python_thread) or not self._writer.knows_thread(info.number):
            self._write_thread(info)
        context, labels, state = raw_thread.context, raw_thread.labels, raw_thread.state
        span = None if context is None else self._contexts.span_of(context)
        if span is not None and span.local_root_id:
            self._note_root(span.local_root_id, span.endpoint)
        return ThreadEntry(
            info.number,
            self._writer.stack(raw_thread.stack),
            self._writer.span(span),
            0 if labels is None else self._writer.labels(self._contexts.labels_of(labels)),
            raw_thread.cpu_ns,
            -1 if state is None else state,
            read_nice_value(raw_thread.native_id) if self._reads_nice else 0,
        )

    def _note_root(self, root: int, name: str) -> None:
        if root not in self._endpoints:
            if len(self._endpoints) >= _MAX_NAMED_ROOTS:
                del self._endpoints[next(iter(self._endpoints))]
            self._endpoints[root] = name

    def _write_thread(self, info: ThreadInfo) -> None:
        self._writer.thread(ThreadRecord(info.number, info.ident, info.native_id, *info.start_ns, info.name))

    def _write_snapshot(
        self, raw: RawSnapshot, instant_ns: int, scope: int, entries: list[ThreadEntry], ended: list[int]
    ) -> None:
        times = (raw.time_ns, instant_ns, max(raw.latency_ns, 0), raw.period_ns, raw.since_previous_ns)
        idle = len(raw.threads) - len(entries)
        self._snapshot_count += 1
        self._total_count += 1
        self._writer.write(SnapshotRecord(*times, raw.process_cpu_ns, scope, idle, entries, ended))


def to_boottime_ns(time_ns: int) -> int:
    """Return a time of day on the boot-time clock; never a future one, even if the time of day is changed."""
    return boottime_ns() - max(time.time_ns() - time_ns, 0)


def read_nice_value(native_id: int) -> int:
    """Return the nice value of a thread of this process; 0 if it has ended or cannot be read."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        return os.getpriority(os.PRIO_PROCESS, native_id)
    except (OSError, OverflowError):
        return 0
