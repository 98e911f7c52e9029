"""Questions of the viewer to recorded data, and the answers; nothing else.

Times are nanoseconds since the epoch. A weight is in the unit of the value that was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

UNKNOWN_SPAN = "(span not received)"  # in place of its name
OTHER_TRACES = 32 * "-"  # in place of the ids of light traces, which a database keeps; as long as they are
MINUTE_NS = 60_000_000_000
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
NEVER_NS = (1 << 63) - 1
LONG_PROFILE_NS = 11 * MINUTE_NS  # more than SPLUNK_PROFILER_EXPORT_INTERVAL can be: a process was stopped in it


_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode, with U+FFFD for lone surrogates, as a browser has it in an address."""
    return text if text.isascii() else _LONE_SURROGATES.sub("\ufffd", text)


class Function(NamedTuple):
    """A function; `kind` says whose code it is: application, library, standard-library, or empty."""

    name: str
    file: str
    kind: str

    def encodable(self) -> Function:
        """Return a copy whose names can be encoded as UTF-8."""
        return Function(encodable(self.name), encodable(self.file), self.kind)


class Frame(NamedTuple):
    """A line of a function, which is an index in the table of functions; line 0 if not known."""

    function: int
    line: int


SpanKey = tuple[str, str]  # ids of trace and span
NO_SPAN: SpanKey = ("", "")


class Facets(NamedTuple):
    """Properties that samples can be chosen by; empty where one is not known. See `facet_value`.

    Stores keep them by position: a new one comes last. `FACETS` is their order on the page.
    """

    service: str = ""
    version: str = ""
    process: str = ""
    endpoint: str = ""  # name of the request's first span in its process; in samples as text of that of the service
    thread: str = ""
    code: str = ""  # whose code the leaf of the stack is
    state: str = ""  # running or waiting
    labels: tuple[tuple[str, str], ...] = ()  # all others of a profile that are text
    span: str = ""  # name of the span

    def named(self, span: str, endpoint: str) -> Facets:
        """Return these with the name of a span that has come after its sample, and with the endpoint if it has none."""
        return self._replace(span=span, endpoint=endpoint if self.endpoint == UNKNOWN_SPAN else self.endpoint)

    def encodable(self) -> Facets:
        """Return these with texts that have an encoding."""
        texts = {name: encodable(value) for name, value in self._asdict().items() if isinstance(value, str)}
        return Facets(**texts, labels=tuple((encodable(name), encodable(value)) for name, value in self.labels))


LABEL = "label:"  # begins the names of facets that are labels
TRACE, SPAN_ID = "trace", "span_id"  # chosen by as well: they are not facets, since each sample can have others
FACETS = ("service", "version", "process", "endpoint", "span", "thread", "code", "state")


def facet_value(facets: Facets, name: str) -> str:
    """Return the value of a facet, or of a label if the name begins with `LABEL`."""
    if name.startswith(LABEL):
        return dict(facets.labels).get(name.removeprefix(LABEL), "")
    value: str = getattr(facets, name)
    return value


def name_value(units: dict[str, str], name: str, unit: str) -> str:
    """Return the name of a value, which is added to `units`; with its unit if others of that name have another."""
    while units.setdefault(name, unit) != unit:
        name = f"{name} ({unit})"
    return name


class Span(NamedTuple):
    """A span of a trace: of a version of a service, with the ids of stacks that a host profiler saw in it."""

    id: str
    parent: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    host_stacks: tuple[str, ...]
    version: str = ""


class SpanRow(NamedTuple):
    """A span in the order of a trace's tree."""

    depth: int
    span: Span


class Sample(NamedTuple):
    """A sample, or an aggregate of those of `duration_ns` from then on.

    `stack` and `facets` are indexes in tables, `weights` are by value.
    """

    time_ns: int
    stack: int
    facets: int
    weights: dict[str, int]
    span: SpanKey = NO_SPAN
    duration_ns: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples with that value, from `since_ns` until before `until_ns`, with any of the values of each facet."""

    value: str
    since_ns: int | None = None
    until_ns: int | None = None
    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def without(self, facet: str) -> Selection:
        """Return this without the filter by a facet."""
        return replace(self, filters={name: values for name, values in self.filters.items() if name != facet})

    def of_trace(self, trace: str) -> Selection:
        """Return this with the filter by a trace, in place of others by traces."""
        return replace(self, filters={**self.filters, TRACE: frozenset({trace})})

    def times_in(self, period_ns: tuple[int, int]) -> tuple[int, int]:
        """Return the times of this; in place of one that it lacks, that of a period."""
        since_ns, until_ns = self.since_ns, self.until_ns
        return period_ns[0] if since_ns is None else since_ns, period_ns[1] if until_ns is None else until_ns

    def at(self, times_ns: tuple[int | None, int | None]) -> Selection:
        """Return this with other times."""
        return replace(self, since_ns=times_ns[0], until_ns=times_ns[1])


class Baseline(NamedTuple):
    """The selection that another is compared with.

    Its weights are scaled to the same ``time``, to as many ``requests``, or to the same total (``share``).
    """

    selection: Selection
    by: str


class TopRow(NamedTuple):
    """The weight of a function: at the leaf, and anywhere on the stack, recursion counted once.

    `own_before` and `total_before` are those of the baseline, scaled.
    """

    function: int
    line: int
    own: float
    total: float
    own_before: float = 0
    total_before: float = 0


class FacetValues(NamedTuple):
    """Values of a facet and their weights, heaviest first, and how many `more` there are: of traces about."""

    values: list[tuple[str, int]]
    more: int


class Series(NamedTuple):
    """The weights of the samples with one value of a facet, by bucket."""

    value: str
    weights: list[int]


class Timeline(NamedTuple):
    """Buckets of `step_ns` from `start_ns`."""

    start_ns: int
    step_ns: int
    series: list[Series]
