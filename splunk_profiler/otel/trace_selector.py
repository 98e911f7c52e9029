"""The selection of traces for trace profiling, from the start of an entry span to its end.

`TraceSelector` is a span processor of the application's provider. `on_start` and `on_end` run on
the application's threads; for nearly all spans they only check the parent. `expire_entries` and
`take_changes` run on the sampler thread. Never imports the SDK. Takes no lock, so that no
fork leaves one locked and no signal handler waits for one. Each change is a single operation, and
`_end_unless_entered` checks again afterwards. An exception from a signal handler in between leaves
stale entries until `expire_entries`.

The trace id decides, so services with the same probability decide alike. An entry span is one with
which its trace enters this process: without a parent, or with a remote one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from splunk_profiler.otel.span_processors import SpanListener, is_local_root
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import real_get_ident

SNAPSHOT_ATTRIBUTE = "splunk.snapshot.profiling"
MAX_ENTRIES = 100
MAX_ENTRY_NS = 600 * 1_000_000_000

_TRACE_ID_MASK = 0xFFFFFFF
_MAX_CHANGES = 4096


class EntrySpan(NamedTuple):
    """The start of an entry span.

    Attributes:
        time_ns: time of day.
        ident: ident of the real thread, also where gevent or eventlet has replaced idents.
        cpu_ns: CPU time that this thread had used.
    """

    time_ns: int
    ident: int
    cpu_ns: int


class TraceChange(NamedTuple):
    """The start of a selected trace's last entry span; None: the trace has ended, at `time_ns`."""

    trace_id: int
    time_ns: int
    entry_span: EntrySpan | None


class TraceSelector(SpanListener):
    """The traces that are profiled now, a share of `probability` of all."""

    def __init__(self, probability: float, monotonic_ns: Callable[[], int] = clocks.monotonic_ns) -> None:
        super().__init__()
        self._max_selected_id = int(probability * _TRACE_ID_MASK) if probability > 0 else -1
        self._monotonic_ns = monotonic_ns
        self._get_ident = real_get_ident()
        self._guard = Guard("the selection of traces")
        self._notify: Callable[[], None] | None = None  # set while traces are selected
        self.refused_count = 0  # entries beyond `MAX_ENTRIES`
        self._has_logged_refusal = False
        # Trace id → start of its last entry. The ticker's trace filter, which it reads with the GIL held.
        self.traces: dict[int, EntrySpan] = {}
        self._entries: dict[int, int] = {}  # span id → trace id
        self._entry_start_ns: dict[int, int] = {}  # span id → start
        self._changes: deque[TraceChange] = deque(maxlen=_MAX_CHANGES)
        self._reported: set[int] = set()  # traces whose end is not reported yet

    def begin(self, notify: Callable[[], None]) -> None:
        """Select traces from now on; call `notify`, which must not block, on the span's thread after each addition."""
        self._notify = notify

    def end(self) -> None:
        """Stop selecting and forget all entries."""
        self._notify = None
        self._clear_entries()

    def detach(self) -> None:
        """Stop listening and forget all entries, whose ends would be missed."""
        super().detach()
        self._clear_entries()

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        """Select the trace of an entry span by its trace id."""
        try:
            if is_local_root(span):
                context = span.context
                if context.trace_id & _TRACE_ID_MASK <= self._max_selected_id and context.trace_flags.sampled:
                    self._add_entry(span, context.trace_id, context.span_id)
        except Exception as error:
            self._guard.note(error)

    def on_end(self, span: Any) -> None:
        """End the selection of a trace with its last entry span."""
        try:
            if self._entries and (span_id := span.context.span_id) in self._entries:
                self._remove_entry(span_id)
        except Exception as error:
            self._guard.note(error)

    def expire_entries(self) -> None:
        """Drop entries that are too old: they may never end, and they block others."""
        if self.refused_count and not self._has_logged_refusal:
            self._has_logged_refusal = True
            logger.info(
                "more than %d selected traces at once: others are not profiled meanwhile (logged once)", MAX_ENTRIES
            )
        oldest_ns = self._monotonic_ns() - MAX_ENTRY_NS
        for span_id, start_ns in list(self._entry_start_ns.items()):
            if start_ns < oldest_ns:
                self._remove_entry(span_id)
        for trace_id in list(self.traces):
            self._end_unless_entered(trace_id)

    def take_changes(self) -> list[TraceChange]:
        """Return the selected traces that have begun or ended since the last call, in order.

        If there were more than are kept, those that were selected for a moment in between are missing.
        """
        if len(self._changes) < _MAX_CHANGES:
            changes = [self._changes.popleft() for _ in range(len(self._changes))]
        else:  # the oldest may be gone
            self._changes.clear()  # first: what changes from now on comes again
            now_ns, traces = time.time_ns(), self.traces.copy()
            changes = [TraceChange(ended, now_ns, None) for ended in self._reported - traces.keys()]
            changes += [TraceChange(trace_id, entry.time_ns, entry) for trace_id, entry in traces.items()]
        for change in changes:
            (self._reported.discard if change.entry_span is None else self._reported.add)(change.trace_id)
        return changes

    def _clear_entries(self) -> None:
        for known in (self._entries, self._entry_start_ns, self.traces, self._changes, self._reported):
            known.clear()

    def _add_entry(self, span: Any, trace_id: int, span_id: int) -> None:
        notify = self._notify
        if notify is None:
            return
        if len(self._entries) >= MAX_ENTRIES:
            self.refused_count += 1
            return
        entry_span = EntrySpan(time.time_ns(), self._get_ident(), time.thread_time_ns())
        self._entry_start_ns[span_id] = self._monotonic_ns()
        self._entries[span_id] = trace_id
        self.traces[trace_id] = entry_span
        self._changes.append(TraceChange(trace_id, entry_span.time_ns, entry_span))
        span.set_attribute(SNAPSHOT_ATTRIBUTE, True)
        notify()

    def _remove_entry(self, span_id: int) -> None:
        trace_id = self._entries.pop(span_id, None)
        self._entry_start_ns.pop(span_id, None)  # last: `expire_entries` finds entries by it
        if trace_id is not None:
            self._end_unless_entered(trace_id)

    def _end_unless_entered(self, trace_id: int) -> None:
        if trace_id in self._entries.values():
            return
        entry_span = self.traces.pop(trace_id, None)
        self._changes.append(TraceChange(trace_id, time.time_ns(), None))
        if entry_span is not None and trace_id in self._entries.values():  # entered again meanwhile
            self.traces[trace_id] = entry_span
            self._changes.append(TraceChange(trace_id, entry_span.time_ns, entry_span))
            if (notify := self._notify) is not None:
                notify()
