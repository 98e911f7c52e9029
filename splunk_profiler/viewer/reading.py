"""Profiles, and files of OTLP/JSON that may still grow, read into a `Recording`: each call reads what is new.

A sample's span may end, and be written, after the sample: its name is put in when it is there. Records of selected
traces are left out, because the samples of all threads include them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from splunk_profiler.viewer.dumps import parse
from splunk_profiler.viewer.model import Facets, Frame, Sample, Span
from splunk_profiler.viewer.otlp_files import (
    ALLOCATION,
    CPU,
    DATA_FORMAT,
    DATA_TYPE,
    PROFILE_SCOPE,
    PROFILE_SUFFIX,
    REQUEST_SUFFIXES,
    SNAPSHOT,
    SOURCE,
    UNKNOWN_SPAN,
    SourceError,
    SpanKey,
    attributes,
    find_files,
    parse_int,
    span_key,
)
from splunk_profiler.viewer.profile_messages import (
    OUTSIDE,
    PROFILE_FORMAT,
    Place,
    ProfileError,
    decode,
    decode_body,
    endpoint_name,
    kind_and_distribution,
    read_places,
)
from splunk_profiler.viewer.recording import IN_USE, Recording

_TEXT_UNITS = {"samples": "count", "wall": "nanoseconds"}
_STATES = {"RUNNABLE": "running", "WAITING": "waiting"}
# Labels that have a facet of their own, and ids.
_NO_FACETS = {"endpoint", "local_root_span_id", "span_id", "thread.id", "thread.name", "thread.state", "trace_id"}
_SUFFIXES = (*REQUEST_SUFFIXES, PROFILE_SUFFIX)
_PROFILE_NAME = re.compile(r"(?P<service>.*)-\d{8}T\d{9}Z-(?P<pid>\d+)-[0-9a-f]{8}-\d+(?P<kind>(-[a-z]+)*)\.pprof")
_HOST_STACKS = "elastic.profiler_stack_trace_ids"  # an attribute of spans


class _Sender(NamedTuple):
    service: str
    version: str
    process: str


def _sender(resource: dict[str, Any]) -> _Sender:
    described = attributes(resource.get("resource", {}))
    service = str(described.get("service.name", "unknown service"))
    parts = (service, described.get("host.name"), described.get("process.pid"))
    process = " ".join(str(part) for part in parts if part is not None)
    return _Sender(service, str(described.get("service.version", "")), process)


class LiveFiles:
    """The content of a directory's files, or of a file.

    Attributes:
        version: another number after each change of `recording`.
        unread: records of the profiling scope, and lines, that could not be read.

    Raises:
        SourceError: there are none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        find_files(path, _SUFFIXES)
        self._start()

    def _start(self) -> None:
        self.recording = Recording()
        self.unread = 0
        self._read_up_to: dict[Path, tuple[int, int]] = {}  # inode and offset
        self._read_profiles: set[Path] = set()  # which are never added to; a service removes the oldest
        self._span_names: dict[SpanKey, str] = {}
        self._nameless: dict[SpanKey, list[int]] = {}  # places of samples whose span has not been written yet

    def refresh(self) -> None:
        """Read what has been added since; all from the start if a file was replaced or cut.

        Raises:
            SourceError: a file cannot be read.
        """
        try:
            for file in self._known_files():
                self._read(file)
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror}") from None

    def _known_files(self) -> list[Path]:
        files = find_files(self.path, _SUFFIXES)
        for file, (inode, offset) in self._read_up_to.items():
            status = file.stat() if file.exists() else None
            if status is None or status.st_ino != inode or status.st_size < offset:
                self._start()
                self.version += 1
                break
        return files

    def _read(self, path: Path) -> None:
        if path.suffix == PROFILE_SUFFIX:
            self._read_profile(path)
            return
        with path.open("rb") as file:
            inode, offset = self._read_up_to.get(path, (path.stat().st_ino, 0))
            file.seek(offset)
            for line in _whole_lines(file):
                offset += len(line)
                self._read_up_to[path] = inode, offset  # first: no line is read twice, whatever is in it
                if line.strip():
                    self._add_request(line)
                    self.version += 1

    def _read_profile(self, path: Path) -> None:
        if path in self._read_profiles:
            return
        self._read_profiles.add(path)
        self.version += 1
        found = _PROFILE_NAME.fullmatch(path.name)
        if found is not None and found["kind"].endswith(f"-{SNAPSHOT}"):
            return
        service, pid = (path.stem, "") if found is None else (found["service"], found["pid"])
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the oldest are removed
            return
        try:
            self._add_message(_Sender(service, "", f"{service} {pid}".strip()), decode(content))
        except ValueError:
            self.unread += 1

    def _add_request(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            for resource in request.get("resourceSpans", ()):
                self._add_spans(resource)
            for resource in request.get("resourceLogs", ()):
                self._add_logs(resource)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            self.unread += 1

    def _add_spans(self, resource: dict[str, Any]) -> None:
        service = _sender(resource).service
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                key = span_key(span)
                self._span_names[key] = str(span.get("name", ""))
                self.recording.spans.setdefault(key[0], {})[key[1]] = _span(span, key, service)
                for place in self._nameless.pop(key, ()):
                    sample = self.recording.samples[place]
                    facets = self.recording.facets[sample.facets]._replace(endpoint=self._span_names[key])
                    self.recording.samples[place] = sample._replace(facets=self.recording.facets_id(facets))

    def _add_logs(self, resource: dict[str, Any]) -> None:
        sender = _sender(resource)
        for scope in resource.get("scopeLogs", ()):
            if scope.get("scope", {}).get("name") == PROFILE_SCOPE:
                for record in scope.get("logRecords", ()):
                    self._add_record(sender, record)

    def _add_record(self, sender: _Sender, record: dict[str, Any]) -> None:
        described = attributes(record)
        data_type = str(described.get(DATA_TYPE, CPU))
        if described.get(SOURCE) == SNAPSHOT or data_type not in (CPU, ALLOCATION):
            return
        body = str((record.get("body") or {}).get("stringValue", ""))
        try:
            if described.get(DATA_FORMAT) == PROFILE_FORMAT:
                self._add_message(sender, decode_body(body))
            elif data_type == CPU:
                self._add_text(sender, record, body, parse_int(described.get("source.event.period")))
        except ValueError:  # `DumpError`, `ProfileError`, or a number that Python does not convert
            self.unread += 1

    def _add_text(self, sender: _Sender, record: dict[str, Any], body: str, period_ms: int) -> None:
        dump = parse(body)
        places = [
            Place(call.name, call.file, call.line or 0, *kind_and_distribution(call.file, "", ""))
            for call in dump.calls
        ]
        key = span_key(record)
        in_span = key[1].strip("0") != ""
        endpoint = self._span_names.get(key, UNKNOWN_SPAN) if in_span else OUTSIDE
        state = "running" if dump.running else "waiting"
        trace, span = (each if each.strip("0") else "" for each in key)
        facets = Facets(*sender, endpoint, dump.thread_name, _code(places), state, trace, span)
        if in_span and key not in self._span_names:
            self._nameless.setdefault(key, []).append(len(self.recording.samples))
        self.recording.units.update(_TEXT_UNITS)
        weights = {"samples": 1, "wall": period_ms * 1_000_000}
        self._add(parse_int(record.get("timeUnixNano")), places, facets, weights)

    def _add_message(self, sender: _Sender, message: Any) -> None:
        try:
            texts = list(message.string_table)
            units = {texts[each.type]: texts[each.unit] for each in message.sample_type}
            places = read_places(message)
            samples = [
                (
                    [places[location] for location in sample.location_id],
                    {texts[label.key]: texts[label.str] if label.str else label.num for label in sample.label},
                    {name: value for name, value in zip(units, sample.value, strict=True) if value},
                )
                for sample in message.sample
            ]
        except (IndexError, KeyError, ValueError) as error:
            raise ProfileError(f"the profile is not consistent: {type(error).__name__} {error}") from None
        self.recording.units.update(units)
        if any(name.startswith(IN_USE) for name in units):
            self.recording.note_heap(sender.process, message.time_nanos)
        for stack, labels, weights in samples:
            named = {key: value for key, value in labels.items() if isinstance(value, str)}
            state = named.get("thread.state", "")
            facets = Facets(
                *sender,
                endpoint_name(stack, named),
                named.get("thread.name", ""),
                _code(stack),
                _STATES.get(state, state),
                named.get("trace_id", ""),
                named.get("span_id", ""),
                tuple(sorted((key, value) for key, value in named.items() if key not in _NO_FACETS)),
            )
            self._add(message.time_nanos, stack, facets, weights)

    def _add(self, time_ns: int, places: list[Place], facets: Facets, weights: dict[str, int]) -> None:
        """Add a sample whose places are leaf first."""
        recording = self.recording
        frames = tuple(
            Frame(recording.function_id(place.function, place.file, place.kind), place.line)
            for place in reversed(places)
        )
        recording.add(Sample(time_ns, recording.stack_id(frames), recording.facets_id(facets), weights))


def _span(span: dict[str, Any], key: SpanKey, service: str) -> Span:
    start_ns, end_ns = (parse_int(span.get(f"{each}TimeUnixNano")) for each in ("start", "end"))
    stacks = attributes(span).get(_HOST_STACKS)
    values = stacks.get("values", ()) if isinstance(stacks, dict) else ()
    host_stacks = tuple(str(value.get("stringValue", "")) for value in values)
    parent = str(span.get("parentSpanId", "")).lower()
    return Span(key[1], parent, str(span.get("name", "")), service, start_ns, max(start_ns, end_ns), host_stacks)


def _code(places: list[Place]) -> str:
    return places[0].kind if places else ""


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; the last one may be a part as yet, unless it is JSON."""
    for line in file:
        if not line.endswith(b"\n"):
            try:
                json.loads(line)
            except (RecursionError, ValueError):
                return
        yield line
