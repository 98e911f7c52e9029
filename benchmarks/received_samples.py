"""Thread samples in what profilers send: texts and profiles of log records, and profiles of ddtrace and pyroscope-io.

Runs in the process of `counting_sink`, which has the folder of `profile_schema` on its path.
"""

from __future__ import annotations

import base64
import email.parser
import email.policy
import gzip
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from profile_schema import decode

_FUNCTION = re.compile(r"\.(\w+)\(")
_CALLEE = re.compile(r"\w+$")
_GAP_NS = 2_000_000  # ddtrace takes the threads of a snapshot one after the other


class SampleReader:
    """Sums over samples; `kinds` are the functions whose samples are summed apart."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = {
            name: dict.fromkeys(("samples", "wall", "cpu", "ran", "in_span", "wrong_span"), 0) for name in kinds
        }
        self._names = list(kinds)
        self._times: set[int] = set()  # each of a snapshot
        self._thread_times: list[int] = []  # each of a thread
        self._samples = self._cpu_ns = 0

    def add_text(self, record: Any) -> None:
        """Add a log record that is one sample."""
        self._times.add(record.time_unix_nano)
        self._samples += 1
        if self._kinds:
            text = record.body.string_value
            kind = self._kind(_FUNCTION.findall(text))
            if kind:
                self._add(kind, {"samples": 1, "ran": int("RUNNABLE" in text)}, record.span_id.hex())

    def add_profile(self, source: Any, body: Any) -> None:
        """Add a profile: of a log record by its time, of a request over HTTP by its content type."""
        if isinstance(source, int):
            self._add_message(decode(gzip.decompress(base64.b64decode(body))), source)
        elif source.startswith("multipart/"):
            self._add_message(decode(_datadog_profile(source, body)), 0)
        else:
            for profile in _pyroscope_profiles(body):
                self._add_message(decode(profile), 0)

    def sums(self) -> dict[str, Any]:
        """Return these sums by the names in `counting_sink.Totals`."""
        times = sorted(self._thread_times)
        ticks = sum(late - early > _GAP_NS for early, late in pairwise(times)) + bool(times)
        return {
            "samples": self._samples,
            "snapshots": len(self._times) + ticks,
            "last_ns": max([*self._times, *times[-1:]], default=0),
            "cpu_ns": self._cpu_ns,
            "kinds": self._kinds,
        }

    def _add_message(self, message: Any, record_ns: int) -> None:
        texts = list(message.string_table)
        columns = [texts[kind.type] for kind in message.sample_type]
        functions = {function.id: texts[function.name] for function in message.function}
        places = {place.id: [functions[line.function_id] for line in place.line] for place in message.location}
        if not columns:  # splunk-opentelemetry: a profile is one snapshot, of threads without values
            self._times.add(record_ns)
        for sample in message.sample:
            values = _read_values(columns, sample.value, message.period)
            self._cpu_ns += values["cpu"]  # of our threads and of those that ended too, which have no samples
            if not values["samples"]:  # of allocations or locks
                continue
            labels = {texts[label.key]: texts[label.str] if label.str else label.num for label in sample.label}
            if "end_timestamp_ns" in labels:
                self._thread_times.append(labels["end_timestamp_ns"])
            self._samples += values["samples"]
            kind = self._kind([name for place in sample.location_id for name in places[place]])
            if kind:
                self._add(kind, values, str(labels.get("span_id", "")))

    def _kind(self, functions: Sequence[str]) -> str:
        names = (match.group() for match in map(_CALLEE.search, functions) if match)
        return next((name for name in names if name in self._kinds), "")

    def _add(self, kind: str, values: dict[str, int], span_id: str) -> None:
        sums = self._kinds[kind]
        for name, value in values.items():
            sums[name] += value
        if span_id:
            sums["in_span"] += values["samples"]
            sums["wrong_span"] += values["samples"] * (span_kind(span_id, self._names) != kind)


def span_kind(span_id: str, kinds: Sequence[str]) -> str:
    """Return the function whose span it is: `service.KindIds` has its number, from 1, in the first digit of the id."""
    number = int(span_id[0], 16)
    return kinds[number - 1] if 0 < number <= len(kinds) else ""


def _read_values(columns: Sequence[str], values: Sequence[int], period: int) -> dict[str, int]:
    """Return how often a sample was seen, its wall and its CPU time, whatever the profiler calls them."""
    if not columns:
        return {"samples": 1, "wall": 0, "cpu": 0}
    row = dict(zip(columns, values, strict=True))
    if columns == ["cpu"]:  # pyroscope-io: samples, times the period
        return {"samples": row["cpu"] // period, "wall": 0, "cpu": 0}
    return {
        "samples": row.get("samples", row.get("wall-samples", 0)),
        "wall": row.get("wall", row.get("wall-time", 0)),
        "cpu": row.get("cpu", row.get("cpu-time", 0)),
    }


def _datadog_profile(content_type: str, body: bytes) -> bytes:
    import zstandard  # type: ignore[import-not-found]  # noqa: PLC0415  # only in the environment of ddtrace

    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    part = next(part for part in form.iter_parts() if part.get_filename() == "profile.pprof")
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    found: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return found


def _pyroscope_profiles(body: bytes) -> Iterator[bytes]:
    """Yield the profiles of a ``push.v1.PushRequest``."""
    for _, series in _fields(gzip.decompress(body)):
        for number, part in _fields(series):
            if number == 2:
                yield next(content for field, content in _fields(part) if field == 1)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a protobuf message that has none but length-prefixed ones."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size, at = _varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value, at
