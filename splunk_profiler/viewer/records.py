"""OTLP requests and profiles, read into a `Recording`.

A sample's span may end, and be written, after the sample: its name is put in when it is there. The first span of its
service in the trace ends last: until it is there, the endpoint of a sample as text is the last one that is known.
Records of selected traces are left out, because the samples of all threads include them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from splunk_profiler.pipeline import gil_waits
from splunk_profiler.pipeline.gil_waits import GilWaits
from splunk_profiler.viewer.dumps import Dump, parse
from splunk_profiler.viewer.model import UNKNOWN_SPAN, Facets, Sample, Span, SpanKey, name_value
from splunk_profiler.viewer.otlp_files import (
    ALLOCATION,
    CPU,
    DATA_FORMAT,
    DATA_TYPE,
    PROFILE_SCOPE,
    SNAPSHOT,
    SOURCE,
    attributes,
    parse_int,
    parse_time,
    span_key,
)
from splunk_profiler.viewer.profile_messages import (
    NOT_SAMPLED,
    OUTSIDE,
    PROFILE_FORMAT,
    Place,
    ProfileDecoder,
    ProfileError,
    endpoint_name,
    place_of,
    read_places,
)
from splunk_profiler.viewer.recording import IN_USE, Recording, SampleRow
from splunk_profiler.viewer.source import first_span

_GIL_VALUES = (("gil_wait", "nanoseconds"), ("gil_long_waits", "count"), ("gil_snapshots", "count"))
_GIL_PLACE = Place("[process].gil_wait", "", 0, "", "")  # the waits are no time of a thread, and have no stack
_TEXT_UNITS = {"samples": "count", "wall": "nanoseconds", "alloc_space": "bytes"}
_STATES = {"RUNNABLE": "running", "WAITING": "waiting"}
# Labels that have a facet of their own, and ids.
_NO_FACETS = {"endpoint", "local_root_span_id", "span_id", "thread.id", "thread.name", "thread.state", "trace_id"}
UNKNOWN_SERVICE = "unknown service"  # in place of its name
HOST_STACKS = "elastic.profiler_stack_trace_ids"  # an attribute of spans
_SIGNALS = {f"resource{each}" for each in ("Logs", "Spans", "Metrics", "Profiles")}  # of which a request has one
_FRAME = struct.Struct("=ii")  # function and line
_MAX_LINE = (1 << 31) - 1
_MAX_WEIGHT = (1 << 63) - 1


VERSION = "service.version"
SENDER_ATTRIBUTES = (VERSION, "host.name", "process.pid", "runtime-id")  # beside the service's name
RUNTIME_ID_LENGTH = 8  # of what is shown


class Sender(NamedTuple):
    """A process that records come from."""

    service: str
    version: str
    process: str


def make_sender(service: str, version: str, host: str, pid: str, runtime_id: str) -> Sender:
    """Return the sender with these attributes of its resource, which may be empty.

    In containers each process has the id 1, so a part of the runtime id tells them apart.
    """
    service = service or UNKNOWN_SERVICE
    process = " ".join(filter(None, (service, host, pid, runtime_id[:RUNTIME_ID_LENGTH])))
    return Sender(service, version, process)


def text_weights(is_allocation: bool, count: int, period_ms: int, allocated: int) -> dict[str, int]:
    """Return the weights of samples as text: of allocations the bytes that they stand for, of others their time."""
    if is_allocation:
        return {"alloc_space": max(0, allocated)}
    return {"samples": count, "wall": max(0, parse_int(period_ms * 1_000_000))}


def sender_of(resource: dict[str, Any]) -> Sender:
    """Return the sender of the logs or spans of a resource."""
    described = attributes(resource.get("resource", {}))
    return make_sender(*(str(described.get(name, "")) for name in ("service.name", *SENDER_ATTRIBUTES)))


class Stack(NamedTuple):
    """A stack: its id, the index in the table, and whose code its leaf is."""

    id: int
    code: str


class TextSample(NamedTuple):
    """A sample as text: its stack, and the name and the state of its thread."""

    stack: Stack
    thread: str
    state: str


_Alike = tuple[bytes, tuple[tuple[str, str], ...]]  # the stack and the labels that are text of samples


class _Sum(NamedTuple):
    """Samples that are alike: their leaf and the sums of their values."""

    leaf: list[Place]
    weights: dict[str, int]


class RecordReader:
    """Reads into `recording`.

    Attributes:
        unread: records of the profiling scope, spans and requests that could not be read.
        spans: all that have come.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        recording.units.update(_TEXT_UNITS)
        self.unread = 0
        self._stacks: dict[bytes, Stack] = {}  # by the digest of their text
        self.spans: dict[SpanKey, Span] = {}
        # Samples of profiles by their span, which has not been written yet. Those as text by the first span on the way
        # to the root that has not, and then by their own.
        self._samples_without_name: dict[SpanKey, list[SampleRow]] = {}
        self._texts_without_root: dict[SpanKey, dict[SpanKey, list[SampleRow]]] = {}

    def add_request(self, line: bytes | str) -> None:
        """Read a request of logs or spans in OTLP/JSON."""
        try:
            request = json.loads(line)
            for resource in request.get("resourceSpans", ()):
                self._add_spans(resource)
            profiles = ProfileDecoder()
            for resource in request.get("resourceLogs", ()):
                self.add_logs(resource, profiles)
            self.unread += bool(request) and _SIGNALS.isdisjoint(request)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            self.unread += 1

    def add_logs(self, resource: dict[str, Any], profiles: ProfileDecoder | None = None) -> None:
        """Read the logs of a resource in OTLP/JSON."""
        profiles = profiles or ProfileDecoder()
        sender = sender_of(resource)
        for scope in resource.get("scopeLogs", ()):
            if scope.get("scope", {}).get("name") == PROFILE_SCOPE:
                for record in scope.get("logRecords", ()):
                    self._add_record(sender, record, profiles)

    def add_spans(self, spans: Mapping[SpanKey, Span]) -> None:
        """Put the names of spans into the samples in and below them, those that come included."""
        self.spans.update(spans)
        for key, span in spans.items():
            for row in self._samples_without_name.pop(key, ()):
                self.recording.name_span(row, span.name)
            for below, rows in self._texts_without_root.pop(key, {}).items():
                endpoint = self._endpoint(below)
                for row in rows:
                    self.recording.name_span(row, self.spans[below].name, endpoint)
                self._wait_for_root(below, rows)

    def name_spans(self, names: Mapping[SpanKey, str]) -> None:
        """Put the names of spans, of which no more is known, into their samples, those that come included."""
        self.add_spans({key: Span(key[1], "", name, "", 0, 0, ()) for key, name in names.items()})

    def unnamed_spans(self) -> Set[SpanKey]:
        """Return the spans that samples wait for: they have not been read."""
        return self._samples_without_name.keys() | self._texts_without_root.keys()

    def release(self) -> None:
        """Forget what only reading needs; samples without the name of their span can still get it."""
        self._stacks.clear()
        self.spans.clear()

    def add_message(self, sender: Sender, message: Any) -> None:
        """Read a profile.

        Raises:
            ProfileError: it is not consistent, or has values that are negative or beyond 64 bits.
        """
        try:
            time_ns = parse_time(message.time_nanos)
            texts = list(message.string_table)
            values = [
                name_value(self.recording.units, texts[each.type], texts[each.unit]) for each in message.sample_type
            ]
            samples = self._sum_samples(message, texts, values)
            waits = _sum_waits([texts[index] for index in message.comment])
        except (IndexError, KeyError, ValueError) as error:
            raise ProfileError(f"the profile is not consistent: {type(error).__name__} {error}") from None
        if any(name.startswith(IN_USE) for name in values):
            self.recording.note_heap(sender.process, time_ns, message.duration_nanos)
        if waits.snapshot_count:
            names = [name_value(self.recording.units, *each) for each in _GIL_VALUES]
            sums = waits.sum_ns, waits.long_count, waits.snapshot_count
            samples[self._pack(_GIL_PLACE), ()] = _Sum([_GIL_PLACE], dict(zip(names, sums, strict=True)))
        for (stack, labels), (leaf, weights) in samples.items():
            named = dict(labels)
            state = named.get("thread.state", "")
            span = named.get("trace_id", ""), named.get("span_id", "")
            endpoint = endpoint_name(leaf, named)
            facets = Facets(
                *sender,
                endpoint=endpoint,
                thread=named.get("thread.name", ""),
                code=leaf[0].kind if leaf else "",
                state=_STATES.get(state, state),
                labels=tuple(sorted((key, value) for key, value in named.items() if key not in _NO_FACETS)),
                span=NOT_SAMPLED if endpoint == NOT_SAMPLED else self._span_name(span),
            )
            indexes = self.recording.stacks.index(stack), self.recording.facets_id(facets)
            self._add(Sample(time_ns, *indexes, weights, span, message.duration_nanos))

    def _sum_samples(self, message: Any, texts: list[str], values: list[str]) -> dict[_Alike, _Sum]:
        """Return the samples of a profile, those that are alike as one: they may be many in few bytes."""
        places = read_places(message)
        frames = {location: b"".join(map(self._pack, reversed(lines))) for location, lines in places.items()}
        names = list(dict.fromkeys(values))
        found: dict[_Alike, _Sum] = {}
        for sample in message.sample:
            stack = b"".join([frames[location] for location in reversed(sample.location_id)])
            labels = tuple([(texts[label.key], texts[label.str]) for label in sample.label if label.str])
            if (stack, labels) not in found:
                leaf = places[sample.location_id[0]] if sample.location_id else []
                found[stack, labels] = _Sum(leaf, dict.fromkeys(names, 0))
            weights = found[stack, labels].weights
            for name, weight in zip(names, sample.value, strict=True):
                weights[name] += weight
                if weight < 0 or weights[name] > _MAX_WEIGHT:
                    raise ValueError("values are negative, as those of a difference of two, or too large")
        return found

    def read_text(self, body: str) -> TextSample:
        """Return what the text of a sample says; `add_stack` takes it.

        Raises:
            DumpError: the body is not a call stack.
        """
        dump = parse(body)
        state = "running" if dump.running else "waiting"
        return TextSample(self._stack_of(body.partition("\n")[2], dump), dump.thread_name, state)

    def add_stack(
        self,
        sender: Sender,
        stack: Stack,
        time_ns: int,
        weights: dict[str, int],
        *,
        thread: str,
        state: str,
        span: SpanKey,
        span_name: str = "",
        endpoint: str = "",
    ) -> None:
        """Read a sample, or several alike, of a stack that `stack` has returned; the units of its weights are known.

        The names of the span and of the endpoint may come later, if they are not given.
        """
        trace_id, span_id = (each if each.strip("0") else "" for each in span)
        key = trace_id, span_id
        name = span_name or self._span_name(key)
        endpoint = endpoint or self._endpoint(key)
        facets = Facets(*sender, endpoint=endpoint, thread=thread, code=stack.code, state=state, span=name)
        row = self.recording.add(Sample(time_ns, stack.id, self.recording.facets_id(facets), weights, key))
        if span_name in {"", UNKNOWN_SPAN}:
            self._wait_for_root(key, [row])

    def stack(self, places: Sequence[Place]) -> Stack:
        """Return a stack of these places, leaf first."""
        packed = b"".join(map(self._pack, reversed(places)))
        return Stack(self.recording.stacks.index(packed), places[0].kind if places else "")

    def _span_name(self, span: SpanKey) -> str:
        if not span[1]:
            return OUTSIDE
        return self.spans[span].name if span in self.spans else UNKNOWN_SPAN

    def _endpoint(self, span: SpanKey) -> str:
        """Return the name of the first span of a span's service in the trace, or of the last one that is known."""
        found = self._first_span(span)
        return self._span_name(span) if found is None else found.name

    def _first_span(self, key: SpanKey) -> Span | None:
        span = self.spans.get(key)
        return span and first_span(span, lambda parent: self.spans.get((key[0], parent)))

    def _wait_for_root(self, span: SpanKey, rows: list[SampleRow]) -> None:
        """Keep samples as text of a span until the next span on the way to the root comes, if there is one."""
        first = self._first_span(span)
        awaited = span if first is None else (span[0], first.parent)
        if awaited[1] and awaited not in self.spans:
            self._texts_without_root.setdefault(awaited, {}).setdefault(span, []).extend(rows)

    def _add(self, sample: Sample) -> None:
        row = self.recording.add(sample)
        if self.recording.facets[sample.facets].span == UNKNOWN_SPAN and sample.span[1]:
            self._samples_without_name.setdefault(sample.span, []).append(row)

    def _stack_of(self, text: str, dump: Dump) -> Stack:
        """Return the stack of a text; equal texts are read once."""
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest not in self._stacks:
            self._stacks[digest] = self.stack([place_of(call) for call in dump.calls])
        return self._stacks[digest]

    def _pack(self, place: Place) -> bytes:
        """Return a place as a frame of the table of stacks."""
        function = self.recording.function_id(place.function, place.file, place.kind)
        return _FRAME.pack(function, place.line if 0 <= place.line <= _MAX_LINE else 0)

    def _add_spans(self, resource: dict[str, Any]) -> None:
        sender = sender_of(resource)
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                key = span_key(span)
                try:
                    found = _span(span, key, sender)
                except ValueError:
                    self.unread += 1
                    continue
                self.recording.spans.setdefault(key[0], {})[key[1]] = found
                self.add_spans({key: found})

    def _add_record(self, sender: Sender, record: dict[str, Any], profiles: ProfileDecoder) -> None:
        described = attributes(record)
        data_type = str(described.get(DATA_TYPE, CPU))
        if described.get(SOURCE) == SNAPSHOT or data_type not in (CPU, ALLOCATION):
            return
        body = str((record.get("body") or {}).get("stringValue", ""))
        try:
            if described.get(DATA_FORMAT) == PROFILE_FORMAT:
                self.add_message(sender, profiles.decode_body(body))
            else:
                period_ms, allocated = map(parse_int, map(described.get, ("source.event.period", "memory.allocated")))
                weights = text_weights(data_type == ALLOCATION, 1, period_ms, allocated)
                time_ns, text = parse_time(record.get("timeUnixNano")), self.read_text(body)
                self.add_stack(
                    sender, text.stack, time_ns, weights, thread=text.thread, state=text.state, span=span_key(record)
                )
        except ValueError:  # `DumpError`, `ProfileError`, or what should be a time or a number
            self.unread += 1


def _sum_waits(comments: Sequence[str]) -> GilWaits:
    """Return the waits for the GIL that comments describe."""
    whole = gil_waits.parse_all(comments)
    if whole.sum_ns > _MAX_WEIGHT:
        raise ValueError("the waits for the GIL are too large")
    return whole


def _span(span: dict[str, Any], key: SpanKey, sender: Sender) -> Span:
    start_ns, end_ns = (parse_time(span.get(f"{each}TimeUnixNano")) for each in ("start", "end"))
    stacks = attributes(span).get(HOST_STACKS)
    values = stacks.get("values", ()) if isinstance(stacks, dict) else ()
    host_stacks = tuple(str(value.get("stringValue", "")) for value in values)
    parent = str(span.get("parentSpanId", "")).lower()
    name, end_ns = str(span.get("name", "")), max(start_ns, end_ns)
    return Span(key[1], parent, name, sender.service, start_ns, end_ns, host_stacks, sender.version)
