"""A test of messages that come in time while the correlator handles earlier ones."""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

extension = pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built")

from splunk_profiler.host_profilers.correlator import Correlator  # noqa: E402

FIRST, SECOND = b"a" * 16, b"b" * 16
LONG_AFTER_NS = 10**12


class Exporter(InMemorySpanExporter):
    """An exporter that sets an event."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def export(self, spans: Any) -> Any:
        result = super().export(spans)
        self.came.set()
        return result


class World:
    """A socket reader and a clock. After the first message, the clock waits for a second one and jumps."""

    def __init__(self) -> None:
        self.sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.second = b""
        self._reader: Any = None
        self._now_ns = 1
        self._taken = False

    def make_reader(self, descriptor: int) -> World:
        self._reader = extension.SocketReader(descriptor)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def take(self, timeout_s: float) -> list[bytes]:
        messages: list[bytes] = self._reader.take(timeout_s)
        self._taken = self._taken or bool(messages)
        return messages

    def now_ns(self) -> int:
        if self._taken and self._now_ns == 1:
            self.sending.send(self.second)
            deadline = time.monotonic() + 30
            while self._reader.counts()[0] < 2:
                assert time.monotonic() < deadline
                time.sleep(0)
            self._now_ns = LONG_AFTER_NS
        return self._now_ns


def test_message_that_arrives_during_a_turn_counts_before_its_span_is_sent(tmp_path: Path) -> None:
    world, exporter = World(), Exporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with world.sending, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiving:
        receiving.bind(str(tmp_path / "s"))
        world.sending.connect(str(tmp_path / "s"))
        correlator = Correlator(True, 10, world.make_reader, world.now_ns)
        correlator.attach(provider._active_span_processor)
        correlator.listen(receiving.fileno(), lambda: None)
        span = provider.get_tracer("t").start_span("root")
        span.end()
        context = span.get_span_context()
        ids = context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")
        first, world.second = (struct.pack("=HH24s16sH", 1, 1, ids, stack, 1) for stack in (FIRST, SECOND))
        world.sending.send(first)
        assert exporter.came.wait(30)
        correlator.stop(1.0)
    (exported,) = exporter.get_finished_spans()
    assert exported.attributes is not None
    assert exported.attributes["elastic.profiler_stack_trace_ids"] == (
        "YWFhYWFhYWFhYWFhYWFhYQ",
        "YmJiYmJiYmJiYmJiYmJiYg",
    )
