"""Files that can be shown: stores, streams, profiles, and OTLP/JSON, one request a line.

`collect` and the OpenTelemetry Collector's file exporter write the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splunk_profiler.config.parsers import ProfilerError
from splunk_profiler.stream.records import HEADER
from splunk_profiler.viewer.model import SpanKey

PROFILE_SCOPE = "otel.profiling"
REQUEST_SUFFIXES, STREAM_SUFFIX = (".jsonl", ".json"), ".stream"
PROFILE_SUFFIXES = (".pprof", ".pb.gz")  # the latter is the name of Go's tools
SOURCE, SNAPSHOT = "profiling.instrumentation.source", "snapshot"
DATA_TYPE, CPU, ALLOCATION = "profiling.data.type", "cpu", "allocation"
DATA_FORMAT = "profiling.data.format"

_INT64_LIMIT = 1 << 63
_TIME_LIMIT_NS = 1 << 62  # in the year 2116: sums of two times are numbers of 64 bits as well


class SourceError(ProfilerError):
    """Error for a source of samples that is missing, damaged or of another kind, or cannot be read or written."""


def is_database(path: Path) -> bool:
    """Return True for a file of SQLite, of whatever content."""
    return _begins_with(path, b"SQLite format 3\0")


def is_stream(path: Path) -> bool:
    """Return True for a stream of captures, of whatever version."""
    return _begins_with(path, HEADER[:-1])


def _begins_with(path: Path, start: bytes) -> bool:
    try:
        if not path.is_file():  # a pipe can be read only once
            return False
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def find_files(path: Path, suffixes: Sequence[str] = REQUEST_SUFFIXES) -> list[Path]:
    """Return the files of a directory, or the file that is named.

    Raises:
        SourceError: there is no file, or the directory cannot be read.
    """
    try:
        files = _list_files(path, suffixes)
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    if not files:
        kinds = " or ".join(suffixes)
        raise SourceError(f"{path} holds no {kinds} files; fill it: splunk-profiler collect --output {path}")
    return files


def _list_files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    if path.is_dir():
        named = sorted(file for file in path.iterdir() if not file.name.startswith("."))  # those are being written
        return [file for file in named if file.name.endswith(tuple(suffixes)) and file.is_file()]
    path.stat()  # its error says why the file cannot be read, which `exists` does not
    return [path]


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes by key; a value is its OTLP/JSON text or number."""
    return {
        item["key"]: next(iter(item["value"].values()), None)
        for item in holder.get("attributes", ())
        if "key" in item and item.get("value")
    }


def span_key(holder: dict[str, Any]) -> SpanKey:
    """Return the ids of trace and span of a span or of a log record; empty without one."""
    return str(holder.get("traceId", "")).lower(), str(holder.get("spanId", "")).lower()


def parse_int(value: Any) -> int:
    """Parse a number of OTLP/JSON (64 bits are text); 0 if it is not one, or out of range."""
    try:
        number = int(value)
    except (OverflowError, TypeError, ValueError):
        return 0
    return number if abs(number) < _INT64_LIMIT else 0


def parse_time(value: Any) -> int:
    """Parse a time in nanoseconds; 0 if there is none.

    Raises:
        ValueError: it is too far from now, or not a number.
    """
    try:
        time_ns = int(value or 0)
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None
    if not 0 <= time_ns < _TIME_LIMIT_NS:
        raise ValueError(f"{time_ns} is too far from now")
    return time_ns
