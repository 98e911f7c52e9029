"""Which traces are profiled closely, from the start of an entry span to its end.

`TraceSelector` is a span processor of the application's provider: `on_start` and `on_end` run on the application's
threads and do, for nearly all spans, nothing but look at the parent. `expire_entries` and `is_selected` run on the
sampling worker's. Never imports the SDK. Takes no lock, so that no fork leaves one locked and no signal handler
waits for one: each change is one operation, and whoever ends an entry looks again afterwards. An exception that such a
handler raises in the middle of it leaves something behind at most until `expire_entries` comes by.

The trace id decides, so all services of a trace that have the same probability decide alike. An entry span is one with
which its trace comes into this process: without a parent, or with one in another process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from splunk_profiler.otel.span_listener import SpanListener, is_local_root
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import real_get_ident

SNAPSHOT_ATTRIBUTE = "splunk.snapshot.profiling"
MAX_ENTRIES = 100
MAX_ENTRY_NS = 600 * 1_000_000_000

_TRACE_ID_MASK = 0xFFFFFFF
_MAX_ENDED = 1024


class EntrySpan(NamedTuple):
    """Where and when an entry span began.

    Attributes:
        time_ns: the time of day.
        ident: of the thread; where gevent or eventlet has replaced idents, that of the real one.
        cpu_ns: CPU time that this thread had used.
    """

    time_ns: int
    ident: int
    cpu_ns: int


class TraceSelector(SpanListener):
    """The traces that are profiled now.

    Args:
        probability: share of traces that are selected.
        monotonic_ns: the clock of how long an entry lasts.
    """

    def __init__(self, probability: float, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._max_selected_id = int(probability * _TRACE_ID_MASK) if probability > 0 else -1
        self._monotonic_ns = monotonic_ns
        self._get_ident = real_get_ident()
        self._guard = Guard("the selection of traces")
        self._notify: Callable[[], None] = _ignore_notification
        self.refused_count = 0  # entries that found no place
        self._has_logged_refusal = False
        self._last_end_ns = 0
        # The focus of the ticker, which reads it with the GIL held: trace id → where its last entry began.
        self.traces: dict[int, EntrySpan] = {}
        self._entries: dict[int, int] = {}  # span id → trace id
        self._entry_start_ns: dict[int, int] = {}  # span id → when it began
        self._ended: OrderedDict[int, int] = OrderedDict()  # trace id → when its last entry ended

    def begin(self, notify: Callable[[], None]) -> None:
        """Select from now on.

        Args:
            notify: called after each addition to `traces`, on the thread of the span; returns at once.
        """
        self._notify = notify

    def end(self) -> None:
        """Forget all entries; those that begin from now on concern nobody."""
        self._notify = _ignore_notification
        self._clear_entries()

    def detach(self) -> None:
        """See `SpanListener.detach`.

        Who hears no more of a provider does not hear of the ends of its entries either.
        """
        super().detach()
        self._clear_entries()

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        """Select the trace of an entry span, or not."""
        try:
            if is_local_root(span):
                context = span.context
                if context.trace_id & _TRACE_ID_MASK <= self._max_selected_id and context.trace_flags.sampled:
                    self._add_entry(span, context.trace_id, context.span_id)
        except Exception as error:
            self._guard.note(error)

    def on_end(self, span: Any) -> None:
        """End the trace's profile with its last entry span."""
        try:
            if self._entries and (span_id := span.context.span_id) in self._entries:
                self._remove_entry(span_id)
        except Exception as error:
            self._guard.note(error)

    def expire_entries(self) -> None:
        """Give up entries that have not ended for long: they may never do, and keep others out."""
        if self.refused_count and not self._has_logged_refusal:
            self._has_logged_refusal = True
            logger.info(
                "more than %d selected traces at once: others are not profiled meanwhile (said once)", MAX_ENTRIES
            )
        oldest_ns = self._monotonic_ns() - MAX_ENTRY_NS
        for span_id, start_ns in list(self._entry_start_ns.items()):
            if start_ns < oldest_ns:
                self._remove_entry(span_id)
        for trace_id in list(self.traces):
            self._end_unless_entered(trace_id)

    def has_selected(self, time_ns: int) -> bool:
        """Whether there may be samples of this time of day that belong to a profile."""
        return bool(self.traces) or time_ns <= self._last_end_ns

    def is_selected(self, trace_id: int, time_ns: int) -> bool:
        """Whether a sample of this trace, taken at this time of day, belongs to its profile."""
        return trace_id in self.traces or time_ns <= self._ended.get(trace_id, 0)

    def entry_span(self, trace_id: int) -> EntrySpan | None:
        """Where the last entry span of the trace began; None if it has ended."""
        return self.traces.get(trace_id)

    def _clear_entries(self) -> None:
        for known in (self._entries, self._entry_start_ns, self._ended, self.traces):
            known.clear()

    def _add_entry(self, span: Any, trace_id: int, span_id: int) -> None:
        if self._notify is _ignore_notification:
            return
        if len(self._entries) >= MAX_ENTRIES:
            self.refused_count += 1
            return
        entry_span = EntrySpan(time.time_ns(), self._get_ident(), time.thread_time_ns())
        self._entry_start_ns[span_id] = self._monotonic_ns()
        self._entries[span_id] = trace_id
        self.traces[trace_id] = entry_span
        span.set_attribute(SNAPSHOT_ATTRIBUTE, True)
        self._notify()

    def _remove_entry(self, span_id: int) -> None:
        trace_id = self._entries.pop(span_id, None)
        self._entry_start_ns.pop(span_id, None)  # last: it is what `expire_entries` knows an entry by
        if trace_id is not None:
            self._end_unless_entered(trace_id)

    def _end_unless_entered(self, trace_id: int) -> None:
        if trace_id in self._entries.values():
            return
        self._ended[trace_id] = self._last_end_ns = time.time_ns()
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        entry_span = self.traces.pop(trace_id, None)
        if entry_span is not None and trace_id in self._entries.values():  # it has come in again in between
            self.traces[trace_id] = entry_span
            self._notify()


def _ignore_notification() -> None:
    """Nobody profiles."""
