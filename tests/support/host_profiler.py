"""The sending side of a host profiler, written from the specification, and an exporter that can be waited for.

`HostProfiler` sends to one process's socket; `RecordingExporter` keeps what an exporter was given. Used by tests and by
their targets. Imports nothing of the package.

Specification: Elastic universal profiling integration, "Message Format".
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span

STACK_IDS_ATTRIBUTE = "elastic.profiler_stack_trace_ids"
HOLD_MS = 60_000  # longer than any test, so nothing is forwarded by time
STACK = bytes.fromhex("60b420bb3851d9d47acb933dbe70399b")
OTHER_STACK = bytes.fromhex("4c9326bb9805fa8f85882c12eae724ce")
ENCODED_STACKS = {STACK: "YLQguzhR2dR6y5M9vnA5mw", OTHER_STACK: "TJMmu5gF-o-FiCwS6uckzg"}


class HostProfiler:
    """A host profiler that sends to one process; blocks while the socket is full.

    Args:
        path: socket of the process.
    """

    def __init__(self, path: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.connect(str(path))

    def register(self, delay_ms: int = HOLD_MS, host_id: str | None = None, minor: int = 1) -> None:
        """Send a registration; without a host id the last field is missing."""
        text = b"" if host_id is None else struct.pack("=I", len(host_id.encode())) + host_id.encode()
        self.send(struct.pack("=HHI", 2, minor, delay_ms) + text)

    def report(self, span: Span, stack: bytes = STACK, count: int = 1) -> None:
        """Send `count` samples of `stack` in the transaction `span`."""
        context = span.get_span_context()
        self.report_ids(context.trace_id, context.span_id, stack, count)

    def report_ids(self, trace_id: int, transaction_id: int, stack: bytes = STACK, count: int = 1) -> None:
        """Send samples like `report`, by the ids of a transaction."""
        ids = trace_id.to_bytes(16, "big") + transaction_id.to_bytes(8, "big")
        self.send(struct.pack("=HH24s16sH", 1, 1, ids, stack, count))

    def send(self, datagram: bytes) -> None:
        """Send any message."""
        self._socket.send(datagram)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> HostProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RecordingExporter(SpanExporter):
    """An exporter that keeps its spans.

    Args:
        on_export: called with each span before it is kept.
    """

    def __init__(self, on_export: Callable[[ReadableSpan], None] = lambda _: None) -> None:
        self._on_export = on_export
        self._changed = threading.Condition()
        self._spans: list[ReadableSpan] = []
        self.is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep `spans`."""
        for span in spans:
            self._on_export(span)
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Ignore the shutdown."""
        self.is_shut_down = True

    def wait_for(self, *names: str, timeout_s: float = 60) -> None:
        """Wait for spans of all these names."""
        with self._changed:
            found = self._changed.wait_for(lambda: not Counter(names) - Counter(self.names), timeout_s)
            assert found, f"{names} were expected, there are {self.names}"

    def clear(self) -> None:
        """Forget the received spans."""
        with self._changed:
            self._spans = []

    @property
    def spans(self) -> list[ReadableSpan]:
        """Received spans, in order."""
        return list(self._spans)

    @property
    def names(self) -> list[str]:
        """Names of the received spans, in order."""
        return [span.name for span in self._spans]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (span,) = (span for span in self._spans if span.name == name)
        return span

    def ids(self, name: str) -> Counter[str] | None:
        """Return the ids on the only span of this name, like `ids_on`."""
        return ids_on(self.one(name))


def ids_on(span: ReadableSpan) -> Counter[str] | None:
    """Return the count of each stack-trace id on `span`; None without the attribute."""
    found: Any = (span.attributes or {}).get(STACK_IDS_ATTRIBUTE)
    return None if found is None else Counter(found)
