"""A provider and a host profiler that correlate in this process; shared by tests.

Import it after `pytest.importorskip("splunk_profiler._context")`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_profiler import HostProfiler, RecordingExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import Span, Tracer
from published_process import provider as named_provider
from published_process import publishing, read_storage

from splunk_profiler.lifecycle.publishing import Publishing

_NEVER_MS = 3_600_000


def batch_processor(exported: RecordingExporter, **settings: Any) -> BatchSpanProcessor:
    """Return a processor that exports on flush or when a batch is full."""
    return BatchSpanProcessor(exported, schedule_delay_millis=_NEVER_MS, **settings)


def simple_processor(exported: RecordingExporter) -> SpanProcessor:
    """Return a processor that exports each span at once, on the thread that ends it."""
    return SimpleSpanProcessor(exported)


class LogCapture(logging.Handler):
    """The log lines of the profiler with their levels; can be waited for."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._changed = threading.Condition()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line."""
        with self._changed:
            self.lines.append(f"{record.levelname} {record.getMessage()}")
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait for a line with this text."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(text), 60), self.lines

    def count(self, text: str) -> int:
        """Return the number of lines with this text."""
        return sum(text in line for line in self.lines)

    @contextmanager
    def capture(self) -> Iterator[LogCapture]:
        """Capture the log inside the block."""
        log = logging.getLogger("splunk_profiler")
        level = log.level
        log.addHandler(self)
        log.setLevel(logging.DEBUG)
        try:
            yield self
        finally:
            log.setLevel(level)
            log.removeHandler(self)


@dataclass(frozen=True)
class Correlated:
    """The parts of a correlating process.

    Attributes:
        life: the publisher.
        provider: its processor exports to `exported`.
        processor: the processor of `provider`.
        exported: exported spans.
        host: the host profiler.
        log: the profiler's log.
    """

    life: Publishing
    provider: TracerProvider
    processor: SpanProcessor
    exported: RecordingExporter
    host: HostProfiler
    log: LogCapture

    @property
    def tracer(self) -> Tracer:
        """Tracer of the provider."""
        return self.provider.get_tracer("test")

    def span(self, name: str, **settings: Any) -> Span:
        """Start a span that is not current."""
        return self.tracer.start_span(name, **settings)

    def flush(self) -> None:
        """Flush the provider."""
        assert self.provider.force_flush()

    def start_holding(self) -> None:
        """Defer transactions until the next flush, and forget the exported ones."""
        self.host.register()
        self.life.audit()  # as a thread of ours does once a second
        self.log.wait_for("has registered")
        self.flush()
        self.exported.clear()


@contextmanager
def correlated(
    directory: Path,
    mode: str = "true",
    *,
    provider: TracerProvider | None = None,
    processor: Callable[[RecordingExporter], SpanProcessor] = simple_processor,
    hold: bool = True,
    **settings: Any,
) -> Iterator[Correlated]:
    """Correlate transactions inside the block.

    Args:
        directory: folder of the socket.
        mode: ``true`` or ``auto``.
        provider: source of the spans; by default a new one.
        processor: makes the provider's processor of the exporter.
        hold: defer transactions until they are flushed.
        settings: further settings of the profiler.
    """
    exported = RecordingExporter()
    tracer_provider = provider or named_provider()
    span_processor = processor(exported)
    tracer_provider.add_span_processor(span_processor)
    try:
        with (
            LogCapture().capture() as log,
            publishing(directory, correlation=mode, enabled=mode == "auto", **settings) as life,
        ):
            with tracer_provider.get_tracer("test").start_as_current_span("met"):
                life.run_pending_work()  # as a thread of ours does meanwhile
                seen = read_storage()
            assert seen is not None
            with HostProfiler(seen.socket) as host:
                made = Correlated(life, tracer_provider, span_processor, exported, host, log)
                if hold:
                    made.start_holding()
                yield made
    finally:
        tracer_provider.shutdown()
