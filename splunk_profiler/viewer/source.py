"""Sources of samples that can be shown: the base of those for files, a store and a database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from splunk_profiler.viewer.model import TRACE, Selection, Span
from splunk_profiler.viewer.recording import Recording

_MAX_DEPTH = 1000  # of spans: parents that go round have no end


class Source:
    """Something that samples are read from.

    Attributes:
        name: as it is shown to the user.
        recording: what has been read.
        version: another number after each change of it, and in each process: a page outlives its server.
        follows: what is added to it appears.
        unread: records of the profiling scope, and requests, that could not be read.
        remark: what else is missing in such a source; empty if nothing is.
    """

    name: str
    recording: Recording
    version = time.time_ns() // 1_000_000  # exact in JavaScript
    follows = True
    unread = 0
    remark = ""

    @property
    def note(self) -> str:
        """Remarks on what is missing; empty if nothing is."""
        unread = f"{self.unread:,} record{'s'[: self.unread > 1]} could not be read." if self.unread else ""
        return " ".join(filter(None, (unread, self.remark, *self.recording.remarks())))

    def refresh(self) -> None:
        """Read what has been added since.

        Raises:
            SourceError: it cannot be read.
        """
        raise NotImplementedError

    def recording_of(self, selection: Selection) -> Recording:
        """Return the recording that has all of a selection."""
        del selection
        return self.recording

    def count_requests(self, selection: Selection) -> int:
        """Return how many spans begin in the time of a selection that are the first of their service in a trace.

        Raises:
            ValueError: it has filters that spans have no values for.
        """
        return count_requests(self.recording.spans, selection)

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace."""
        return list(self.recording.spans.get(trace, {}).values())


def count_requests(spans: Mapping[str, Mapping[str, Span]], selection: Selection) -> int:
    """Count the spans that begin in the time of a selection and are the first of their service in a trace.

    Args:
        spans: by trace, then by their id.
        selection: with filters by service, version, endpoint and trace alone.

    Raises:
        ValueError: it has other filters.
    """
    check_request_filters(selection)
    filters = selection.filters
    since_ns = 0 if selection.since_ns is None else selection.since_ns
    until_ns = 1 << 63 if selection.until_ns is None else selection.until_ns
    return sum(
        since_ns <= span.start_ns < until_ns
        and span.service in filters.get("service", {span.service})
        and span.version in filters.get("version", {span.version})
        and span.name in filters.get("endpoint", {span.name})
        for trace, of_trace in spans.items()
        if trace in filters.get(TRACE, {trace})
        for span in first_spans(of_trace)
    )


def first_spans(of_trace: Mapping[str, Span]) -> list[Span]:
    """Return the spans of a trace, by their id, that have no parent in their own service."""
    parents = ((span, of_trace.get(span.parent)) for span in of_trace.values())
    return [span for span, parent in parents if parent is None or parent.service != span.service]


def first_span(span: Span, find: Callable[[str], Span | None]) -> Span:
    """Return the first span of a span's service on the way from its trace's root to it, as far as `find` knows them."""
    for _ in range(_MAX_DEPTH):
        parent = find(span.parent)
        if parent is None or parent.service != span.service:
            break
        span = parent
    return span


def check_request_filters(selection: Selection) -> None:
    """Raise `ValueError` if a selection has filters that spans have no values for."""
    other = selection.filters.keys() - {"service", "version", "endpoint", TRACE}
    if other:
        names = ", ".join(sorted(other))
        raise ValueError(f"requests are counted by service, version, endpoint and trace: remove the filter by {names}")
