"""Samples as columns, by time: a selection is a slice of them, and a sum of it one operation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from splunk_profiler.viewer.model import DAY_NS, LONG_PROFILE_NS, NO_SPAN, SPAN_ID, TRACE, Sample, SpanKey
from splunk_profiler.viewer.stacks import Numbers

TRACE_LENGTH, SPAN_LENGTH = 32, 16  # of ids in hex
_ROWS_AT_ONCE = 500_000


class SpanKeys(NamedTuple):
    """The spans of samples: `traces` are ids, `trace_of` is by span an index among them, `ids` is by span.

    The first span is `NO_SPAN`.
    """

    traces: Numbers
    trace_of: Numbers
    ids: Numbers

    def key(self, span: int) -> SpanKey:
        """Return the ids of a span."""
        return self.traces[self.trace_of[span]].decode(), self.ids[span].decode()

    def allowed_by(self, filters: Mapping[str, frozenset[str]]) -> Numbers:
        """Return for each span if the filters by trace and by span let it through."""
        allowed = np.ones(len(self.ids), bool)
        for name, ids in ((TRACE, self.traces), (SPAN_ID, self.ids)):
            if name in filters:
                found = np.zeros(len(ids), bool)
                for wanted in filters[name]:
                    found |= ids == wanted.encode(errors="replace")
                allowed &= found[self.trace_of] if name == TRACE else found
        return allowed


@dataclass(frozen=True, slots=True)
class Columns:
    """Samples that have the same values, by time; all but `spans` are by sample.

    Attributes:
        stack, facets: indexes in the tables of the recording.
        span: index in `spans`.
        weights: by value.
        longest_ns: the longest duration of any.
        last_end_ns: when the last one ends; 0 if it is not known.
        usual_ns: the longest duration up to `LONG_PROFILE_NS`.
    """

    time_ns: Numbers
    stack: Numbers
    facets: Numbers
    span: Numbers
    weights: Mapping[str, Numbers]
    spans: SpanKeys
    longest_ns: int = 0
    last_end_ns: int = 0
    usual_ns: int = 0
    _sums: dict[str, Numbers] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def end_ns(self) -> int:
        """The end of the last sample, as if all were as long as the longest if it is not known; 0 if there are none."""
        return (self.last_end_ns or int(self.time_ns[-1]) + _used_ns(self.longest_ns)) if len(self) else 0

    def rows_between(self, since_ns: int | None, until_ns: int | None) -> slice:
        """Return the samples from `since_ns` until before `until_ns`."""
        first = 0 if since_ns is None else int(np.searchsorted(self.time_ns, since_ns))
        last = len(self) if until_ns is None else int(np.searchsorted(self.time_ns, until_ns))
        return slice(first, last)

    def has_any(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Return True if any sample is between these times."""
        return len(self.time_ns[self.rows_between(since_ns, until_ns)]) > 0

    def sum_facets(self, value: str, rows: slice | Numbers) -> Numbers:
        """Return the sum of a value in some samples, by the index of their facets; that of all is kept."""
        if not isinstance(rows, slice) or rows != slice(0, len(self)):
            return np.bincount(self.facets[rows], self.weights[value][rows])
        if value not in self._sums:
            self._sums[value] = np.bincount(self.facets, self.weights[value])
        return self._sums[value]


class ColumnsBuilder:
    """Samples with values of those names, in the order in which they come."""

    def __init__(self, names: Sequence[str]) -> None:
        self._time_ns, self._stack, self._facets, self._span = array("q"), array("i"), array("i"), array("i")
        self._weights = {name: array("q") for name in names}
        self._spans: dict[SpanKey, int] = {NO_SPAN: 0}
        self._longest_ns = self._usual_ns = self._end_ns = 0
        self._built: Columns | None = None

    def add(self, sample: Sample) -> int:
        """Add a sample and return its row."""
        self._built = None
        self._longest_ns = max(self._longest_ns, sample.duration_ns)
        if sample.duration_ns <= LONG_PROFILE_NS:
            self._usual_ns = max(self._usual_ns, sample.duration_ns)
        self._end_ns = max(self._end_ns, sample.time_ns + _used_ns(sample.duration_ns))
        self._time_ns.append(sample.time_ns)
        self._stack.append(sample.stack)
        self._facets.append(sample.facets)
        span = sample.span if is_span_key(sample.span) else NO_SPAN
        self._span.append(self._spans.setdefault(span, len(self._spans)))
        for name, weights in self._weights.items():
            weights.append(sample.weights.get(name, 0))
        return len(self._time_ns) - 1

    def facets(self, row: int) -> int:
        """Return the facets of a sample."""
        return self._facets[row]

    def set_facets(self, row: int, facets: int) -> None:
        """Give a sample other facets."""
        self._facets[row] = facets
        self._built = None

    def built(self) -> Columns:
        """Return the samples by time."""
        if self._built is None:
            order = np.argsort(np.array(self._time_ns, np.int64), kind="stable")
            time_ns, stack, facets, span = (
                np.array(each)[order] for each in (self._time_ns, self._stack, self._facets, self._span)
            )
            weights = {name: np.array(each)[order] for name, each in self._weights.items()}
            spans = span_keys(list(self._spans))
            lengths = self._longest_ns, self._end_ns, self._usual_ns
            self._built = Columns(time_ns, stack, facets, span, weights, spans, *lengths)
        return self._built


def _used_ns(duration_ns: int) -> int:
    """Return the duration of a sample, a day at most."""
    return max(1, min(duration_ns, DAY_NS))


def joined_pairs(pairs: Iterable[tuple[Numbers, Numbers]]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of arrays joined to fewer, larger ones: a small one costs as much as the sums it is added to."""
    waiting: list[tuple[Numbers, Numbers]] = []
    rows = 0
    for pair in pairs:
        waiting.append(pair)
        rows += len(pair[0])
        if rows >= _ROWS_AT_ONCE:
            yield np.concatenate([one for one, _ in waiting]), np.concatenate([other for _, other in waiting])
            waiting, rows = [], 0
    if waiting:
        yield np.concatenate([one for one, _ in waiting]), np.concatenate([other for _, other in waiting])


def last_times(groups: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """Return the last time of each group; `groups` are numbers of them, and times."""
    last_ns = np.zeros(max((int(group.max(initial=0)) for group, _ in groups), default=0) + 1, np.int64)
    for group, time_ns in groups:
        np.maximum.at(last_ns, group, time_ns)
    return last_ns


def without_ended(last_ns: Numbers, count: int, profiles: Sequence[Columns]) -> Numbers:
    """Return the time of the last profile of each process, -1 where the process has ended.

    The times are in groups of `count`, one group a step. A process has ended if the newest profile of its step is later
    by more than two of the longest profiles up to `LONG_PROFILE_NS`. Without lengths no process counts as ended.
    """
    longest_ns = max((each.usual_ns for each in profiles), default=0)
    if not longest_ns:
        return last_ns
    steps = np.pad(last_ns, (0, -len(last_ns) % count)).reshape(-1, count)
    silence_ns = steps.max(axis=1, keepdims=True) - steps
    ended = silence_ns - longest_ns > longest_ns  # twice that may be more than 64 bits have
    return np.where(ended, -1, steps).ravel()


def span_keys(keys: Sequence[SpanKey]) -> SpanKeys:
    """Return spans, of which the first is `NO_SPAN`, as arrays."""
    traces: dict[str, int] = {}
    trace_of = [traces.setdefault(trace, len(traces)) for trace, _ in keys]
    return SpanKeys(
        np.array([trace.encode() for trace in traces], f"S{TRACE_LENGTH}"),
        np.array(trace_of, np.int32),
        np.array([span.encode() for _, span in keys], f"S{SPAN_LENGTH}"),
    )


def is_span_key(key: SpanKey) -> bool:
    """Return True for ids as OpenTelemetry has them, of which one may be empty."""
    trace, span = key
    return len(trace) in {0, TRACE_LENGTH} and len(span) in {0, SPAN_LENGTH} and (trace + span).isascii()
