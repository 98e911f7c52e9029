"""Sinks that stay in this process or on this machine: a list in memory and a file of JSON lines.

For benchmarks, tests and people without a collector. `export` runs on the exporting thread, the rest on any.
Imports no OpenTelemetry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from splunk_profiler.formats.text import body
from splunk_profiler.model import Batch, ExportResult, ExportStatus, Sample
from splunk_profiler.system.private_files import open_private
from splunk_profiler.system.threads import real_lock


class MemorySink:
    """Keeps what it is given. Not bounded: for measurements and tests."""

    def __init__(self) -> None:
        self.batches: list[Batch[Sample]] = []
        self._is_closed = False

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """See `Sink.export`."""
        if self._is_closed:
            return ExportResult(ExportStatus.RETRY, "the sink is closed")
        self.batches.append(batch)
        return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """See `Sink.set_shutdown_deadline`: an export here takes no time."""

    def interrupt(self) -> None:
        """See `Sink.interrupt`: as for `set_shutdown_deadline`."""

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._is_closed = True


class FileSink:
    """Appends one JSON object for each sample to a file, with the fields of the OTLP log record.

    Args:
        path: the file; made for its owner alone if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_closed = False
        self._lock = real_lock()

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """See `Sink.export`. A batch is on the file whole or, as far as the file system allows, not at all."""
        lines = "".join(json.dumps(_json_fields(sample)) + "\n" for sample in batch.records).encode("ascii")
        with self._lock:
            if self._is_closed:
                return ExportResult(ExportStatus.RETRY, "the sink is closed")
            try:
                with open(self._path, "ab", buffering=0, opener=open_private) as file:  # that takes no opener
                    start = file.tell()
                    try:
                        _write_all(file, lines)
                    except OSError:
                        file.truncate(start)
                        raise
            except OSError as error:
                return ExportResult(ExportStatus.RETRY, f"{self._path} cannot be written: {error.strerror}")
        return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """See `Sink.set_shutdown_deadline`: a write to a file cannot be made faster."""

    def interrupt(self) -> None:
        """See `Sink.interrupt`: nor be ended early."""

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._is_closed = True


def _write_all(file: Any, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:  # a full disk takes a part before it refuses
        remaining = remaining[file.write(remaining) :]


def _json_fields(sample: Sample) -> dict[str, Any]:
    span = sample.span
    return {
        "time_unix_nano": sample.time_ns,
        "trace_id": f"{span.trace_id:032x}" if span else "",
        "span_id": f"{span.span_id:016x}" if span else "",
        "flags": span.trace_flags if span else 0,
        "source.event.period": sample.period_ns // 1_000_000,
        "thread.stack.truncated": sample.thread.stack.truncated,
        "body": body(sample),
    }
