"""The selected traces, as a stream tells of them. Imports `stream` only."""

from __future__ import annotations

from collections import OrderedDict

from splunk_profiler.stream.records import TraceEndRecord, TraceRecord

_MAX_TRACES = 2048  # selected at once are a hundred; the others have ended


class SelectedTraces:
    """The traces that are selected, or were at the time of a capture that comes later in the stream."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, TraceRecord] = OrderedDict()  # by trace id
        self._ended_ns: OrderedDict[int, int] = OrderedDict()  # trace id → end
        self._last_end_ns = 0

    def select(self, trace: TraceRecord) -> None:
        """Note that a trace is selected, or came into the process again."""
        self._ended_ns.pop(trace.trace_id, None)
        self._entries.pop(trace.trace_id, None)
        self._entries[trace.trace_id] = trace
        if len(self._entries) > _MAX_TRACES:
            oldest, _ = self._entries.popitem(last=False)
            self._ended_ns.pop(oldest, None)

    def end(self, trace: TraceEndRecord) -> None:
        """Note that a trace has ended."""
        if trace.trace_id in self._entries:
            self._ended_ns[trace.trace_id] = trace.time_ns
            self._last_end_ns = max(self._last_end_ns, trace.time_ns)

    def clear(self) -> None:
        """Forget all; a stream that begins anew tells of those that are still selected."""
        self._entries.clear()
        self._ended_ns.clear()
        self._last_end_ns = 0

    def has_selected(self, time_ns: int) -> bool:
        """Return True if samples of this time of day may belong to a selected trace."""
        return len(self._entries) > len(self._ended_ns) or time_ns <= self._last_end_ns

    def is_selected(self, trace_id: int, time_ns: int) -> bool:
        """Return True if this trace was selected at this time of day."""
        return trace_id in self._entries and time_ns <= self._ended_ns.get(trace_id, time_ns)

    def entry(self, trace_id: int) -> TraceRecord | None:
        """Return the last entry of a trace into the process, or None."""
        return self._entries.get(trace_id)
