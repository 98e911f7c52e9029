"""Tests of the delay of transactions, with a clock and a socket reader of the test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Span

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from host_profiler import ENCODED_STACKS, STACK, HostProfiler, RecordingExporter

from splunk_profiler import _context
from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.host_profilers.message_socket import MessageSocket

_MS = 1_000_000
_LONG_S = 60
_MARGIN_MS = 20


class Turns:
    """A socket reader that reports the timeout of each `take` and returns the test's messages."""

    def __init__(self, _descriptor: int) -> None:
        self.waits_s: SimpleQueue[float] = SimpleQueue()
        self.given: SimpleQueue[list[bytes]] = SimpleQueue()
        self.woken = 0
        self.is_receiving = self.is_lost = self.is_stopped = False
        self.has_message = True

    def start(self) -> None:
        """Note that it receives."""
        self.is_receiving = True

    def take(self, timeout_s: float) -> list[bytes]:
        """Return the messages of the test; none without a timeout."""
        if not timeout_s:
            return []
        self.waits_s.put(timeout_s)
        return self.given.get()

    def wake(self) -> None:
        """Count the call."""
        self.woken += 1

    def stop(self) -> None:
        """End `take`."""
        self.is_stopped = True
        self.given.put([])

    def counts(self) -> tuple[int, int]:
        """Return no messages."""
        return 0, 0


@dataclass
class Waiting:
    """A correlator at the beginning of a turn."""

    turns: Turns
    provider: TracerProvider
    exported: RecordingExporter
    now_ns: int = 0
    wait_s: float = 0.0
    made: list[Any] = field(default_factory=list)

    def turn(self, *datagrams: bytes, at_ms: float | None = None) -> float:
        """Send messages, set the time, and return the next timeout of the correlator (s)."""
        if at_ms is not None:
            self.now_ns = int(at_ms * _MS)
        self.turns.given.put(list(datagrams))
        self.wait_s = self.turns.waits_s.get(timeout=_LONG_S)
        return self.wait_s

    def end(self, name: str, at_ms: float) -> Span:
        """Start a transaction and end it at `at_ms`."""
        span = self.provider.get_tracer("t").start_span(name)
        self.now_ns = int(at_ms * _MS)
        span.end()
        return span


@contextmanager
def correlation_settings(at_once: bool = True) -> Iterator[Waiting]:
    exported = RecordingExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(exported))
    made: list[Turns] = []

    def make(descriptor: int) -> Turns:
        made.append(Turns(descriptor))
        return made[-1]

    holder: list[Waiting] = []
    clock: Callable[[], int] = lambda: holder[0].now_ns if holder else 0  # noqa: E731
    correlator = Correlator(at_once, 10, make, clock)
    correlator.attach(vars(provider)["_active_span_processor"])
    correlator.listen(-1, lambda: None)
    correlator.look()
    waiting = Waiting(made[0], provider, exported)
    holder.append(waiting)
    waiting.wait_s = waiting.turns.waits_s.get(timeout=_LONG_S)
    try:
        yield waiting
    finally:
        correlator.close()
        correlator.stop(0)
        provider.shutdown()


def registration(delay_ms: int) -> bytes:
    return struct.pack("=HHI", 2, 1, delay_ms)


def stack_trace(span: Span, count: int = 1) -> bytes:
    context = span.get_span_context()
    ids = context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")
    return struct.pack("=HH24s16sH", 1, 1, ids, STACK, count)


def test_transactions_wait_a_second_until_a_profiler_gives_its_delay() -> None:
    with correlation_settings() as waiting:
        waiting.end("root", at_ms=5000)
        assert waiting.turn(at_ms=5000) == 1.0
        waiting.turn(at_ms=5999.999)
        assert waiting.exported.names == []
        waiting.turn(at_ms=6000)
        assert waiting.exported.names == ["root"]


@pytest.mark.parametrize("delay_ms", [0, 100, 5000, 60_000])
def test_after_a_registration_they_wait_for_the_samples_delay_and_a_margin(delay_ms: int) -> None:
    with correlation_settings() as waiting:
        waiting.turn(registration(delay_ms))
        waiting.end("root", at_ms=1000)
        due_ms = 1000 + delay_ms + _MARGIN_MS
        assert waiting.turn() == pytest.approx((delay_ms + _MARGIN_MS) / 1000)
        waiting.turn(at_ms=due_ms - 0.001)
        assert waiting.exported.names == []
        waiting.turn(at_ms=due_ms)
        assert waiting.exported.names == ["root"]


def test_the_last_registration_counts_also_for_what_waits_already() -> None:
    with correlation_settings() as waiting:
        waiting.turn(registration(10_000))
        waiting.end("root", at_ms=1000)
        assert waiting.turn() == pytest.approx(10.02)
        waiting.turn(registration(200), at_ms=1219.999)
        assert waiting.exported.names == []
        waiting.turn(at_ms=1220)
        assert waiting.exported.names == ["root"]


def test_a_delay_of_hours_is_cut_to_a_minute() -> None:
    with correlation_settings() as waiting:
        waiting.turn(registration(0xFFFFFFFF))
        waiting.end("root", at_ms=0)
        assert waiting.turn() == pytest.approx(60.02)


def test_after_a_first_stack_trace_in_auto_they_wait_for_a_second() -> None:
    with correlation_settings(at_once=False) as waiting:
        span = waiting.end("nobody is there", at_ms=0)
        assert waiting.exported.names == ["nobody is there"]
        waiting.turn(stack_trace(span))
        waiting.end("root", at_ms=10)
        assert waiting.exported.names == ["nobody is there"]
        assert waiting.turn() == 1.0
        waiting.turn(at_ms=1010)
        assert waiting.exported.names == ["nobody is there", "root"]


def test_what_has_come_is_counted_before_what_is_due_is_forwarded() -> None:
    with correlation_settings() as waiting:
        span = waiting.end("root", at_ms=0)
        waiting.turn(stack_trace(span, 3), at_ms=1000)
        assert waiting.exported.ids("root") == {ENCODED_STACKS[STACK]: 3}


def test_what_comes_too_late_changes_nothing() -> None:
    with correlation_settings() as waiting:
        span = waiting.end("root", at_ms=0)
        waiting.turn(at_ms=1000)
        waiting.turn(stack_trace(span))
        assert waiting.exported.ids("root") is None
        assert waiting.exported.names == ["root"]


def test_they_are_forwarded_one_after_another_each_when_it_is_due() -> None:
    with correlation_settings() as waiting:
        for at_ms in (0, 300, 600):
            waiting.end(str(at_ms), at_ms)
        waiting.turn(at_ms=1000)
        assert waiting.exported.names == ["0"]
        assert waiting.wait_s == pytest.approx(0.3)
        waiting.turn(at_ms=1600)
        assert waiting.exported.names == ["0", "300", "600"]
        assert waiting.wait_s == 3600, "nothing waits: nobody needs to look"


def test_correlator_is_woken_only_by_the_first_waiting_transaction() -> None:
    with correlation_settings() as waiting:
        assert waiting.wait_s == 3600
        for number in range(5):
            waiting.end(str(number), at_ms=0)
        assert waiting.turns.woken == 1


def test_message_still_in_the_socket_is_taken() -> None:
    with TemporaryDirectory(prefix="s") as directory:
        message_socket = MessageSocket(directory)
        reader = _context.SocketReader(message_socket.fileno())
        (path,) = Path(directory).iterdir()
        with HostProfiler(path) as host, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.connect(str(path))
            host.send(b"first")
            other.send(b"second")
            assert reader.take(0) == [b"first", b"second"]
        reader.stop()
        message_socket.close()
