"""Tests of stops while profilers go on sending, and of exporters that end threads."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from asyncio import CancelledError
from contextlib import ExitStack
from errno import EAGAIN
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from correlator_bench import WAIT_S, CorrelatorBench
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from splunk_profiler._context import SocketReader
from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.threads import NAME_PREFIX, wait_until


class WrappedReader:
    """A socket reader that behaves as usual, but for what its subclasses change."""

    def __init__(self, descriptor: int) -> None:
        self._reader = SocketReader(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class Talkative(WrappedReader):
    """A socket reader that gets a message at each wake-up."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.say: Any = lambda: None

    def wake(self) -> None:
        self.say()
        self._reader.wake()


@pytest.mark.parametrize("kind", ["a report", "a registration"])
def test_what_profilers_send_while_it_stops_does_not_begin_it_anew(tmp_path: Path, kind: str) -> None:
    made: list[Talkative] = []

    def talkative(descriptor: int) -> Talkative:
        made.append(Talkative(descriptor))
        return made[-1]

    bench = CorrelatorBench(tmp_path, at_once=True, resource={}, make_reader=talkative)
    span = bench.tracer.start_span("seen")
    held = bench.processor.on_end  # a thread of the application may call it later
    made[-1].say = (lambda: bench.report_stack(span)) if kind == "a report" else bench.register
    bench.correlator.stop(1)
    made[-1].say = lambda: None
    try:
        late: Any = bench.tracer.start_span("late")
        held(late)
        assert [one.name for one in bench.exporter.get_finished_spans()] == ["late"]
        assert not {"on_end", "on_start"} & vars(bench.processor).keys()
    finally:
        bench.end()


class Refused(WrappedReader):
    """A socket reader whose thread cannot be made twice."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._refusals = 2

    def start(self) -> None:
        if self._refusals:
            self._refusals -= 1
            raise BlockingIOError(EAGAIN, "no more threads")
        self._reader.start()


def test_first_message_is_counted_once_the_process_can_make_a_thread(tmp_path: Path) -> None:
    bench = CorrelatorBench(tmp_path, at_once=False, resource={}, make_reader=Refused)
    bench.register(0, b"i-1")
    while not bench.correlator.counts().received:
        threading.Event().wait(0.001)
    bench.end()
    assert bench.correlator.counts()[:4] == (1, 0, 0, 0)


class Threadless(WrappedReader):
    """A socket reader that finds no room for its thread."""

    def start(self) -> None:
        raise BlockingIOError(EAGAIN, "no more threads")


def test_transactions_are_forwarded_where_the_process_can_make_no_thread(tmp_path: Path) -> None:
    bench = CorrelatorBench(tmp_path, at_once=False, resource={}, make_reader=Threadless)
    bench.register()
    assert wait_until(lambda: "on_end" in vars(bench.processor), WAIT_S)
    assert bench.run_span("after").name == "after"
    bench.end()


def test_a_stop_before_the_first_message_waits_for_nothing() -> None:
    reads: list[int] = []

    def now_ns() -> int:  # each read lasts a millisecond
        reads.append(threading.get_ident())
        return len(reads) * 1_000_000

    inbox, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with inbox, other:
        correlator = Correlator(False, 10, SocketReader, now_ns)
        correlator.listen(inbox.fileno(), lambda: None)
        correlator.stop(60)
    assert reads.count(threading.get_ident()) < 20


def test_transactions_that_wait_are_forwarded_also_by_a_socket_made_anew(tmp_path: Path) -> None:
    bench = CorrelatorBench(tmp_path, at_once=False, resource={})
    try:
        bench.register()
        assert wait_until(lambda: "on_end" in vars(bench.processor), WAIT_S)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as anew:
            anew.bind(str(tmp_path / "anew"))
            bench.correlator.listen(anew.fileno(), bench.lost.set)
            assert bench.run_span("after").name == "after"
            bench.correlator.close()
    finally:
        bench.end()


class Counting(WrappedReader):
    """A socket reader that counts how often messages are taken."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.takes = 0

    def take(self, timeout_s: float) -> list[bytes]:
        self.takes += 1
        return self._reader.take(timeout_s)


def test_a_stop_after_the_application_closed_the_socket_spins_in_no_thread(tmp_path: Path) -> None:
    made: list[Counting] = []

    def counting(descriptor: int) -> Counting:
        made.append(Counting(descriptor))
        return made[-1]

    bench = CorrelatorBench(tmp_path, at_once=True, resource={}, make_reader=counting)
    bench.run_span()
    os.close(bench.receiving.detach())  # what receives still waits there, for up to a second
    before = made[-1].takes
    bench.correlator.stop(1)
    assert made[-1].takes - before < 100
    bench.end()
    assert wait_until(lambda: not any(one.name.startswith(NAME_PREFIX) for one in threading.enumerate()), WAIT_S)


class Late(WrappedReader):
    """A socket reader whose stop comes back only once the correlator's thread has ended."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.has_ended = False

    def stop(self) -> None:
        self._reader.stop()
        self.has_ended = wait_until(
            lambda: NAME_PREFIX + "correlator" not in {one.name for one in threading.enumerate()}, WAIT_S
        )


@pytest.mark.parametrize("at_once", [True, False])
def test_the_thread_ends_also_while_a_stop_waits_for_its_turn(tmp_path: Path, at_once: bool) -> None:
    made: list[Late] = []

    def late(descriptor: int) -> Late:
        made.append(Late(descriptor))
        return made[-1]

    bench = CorrelatorBench(tmp_path, at_once=at_once, resource={}, make_reader=late)
    bench.correlator.close()
    bench.end()
    assert made[-1].has_ended
    assert not bench.lost.is_set()


class Interrupted(WrappedReader):
    """A socket reader during whose stop something else happens."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.meanwhile: Any = None

    def stop(self) -> None:
        self._reader.stop()
        if self.meanwhile is not None:
            thread, self.meanwhile = threading.Thread(target=self.meanwhile), None
            thread.start()
            thread.join()


def test_socket_listened_to_during_a_close_is_closed_by_the_next_one() -> None:
    made: list[Interrupted] = []

    def interrupted(descriptor: int) -> Interrupted:
        made.append(Interrupted(descriptor))
        return made[-1]

    correlator = Correlator(False, 10, interrupted)
    with ExitStack() as sockets:
        ours = [sockets.enter_context(each).fileno() for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
        correlator.listen(ours[0], lambda: None)
        made[0].meanwhile = lambda: correlator.listen(ours[1], lambda: None)
        correlator.close()
        correlator.close()
        assert wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith(NAME_PREFIX)], 60)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, CancelledError])
def test_an_exporter_that_ends_threads_does_not_end_the_one_that_forwards(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    class Ending(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            super().on_end(span)
            raise kind

    bench = CorrelatorBench(tmp_path, at_once=True, resource={})
    bench.provider.add_span_processor(Ending(InMemorySpanExporter()))
    bench.register()
    try:
        for name in ("one", "two"):
            assert bench.run_span(name).name == name
    finally:
        bench.end()


def test_a_queue_that_cannot_be_measured_is_taken_for_one_without_an_end() -> None:
    class Batch:
        _queue = SimpleNamespace(maxlen=10)

    class Odd(SimpleSpanProcessor):
        _batch_processor = Batch()

    assert WrappedProcessor(Odd(InMemorySpanExporter()), time.monotonic_ns).free_slots == sys.maxsize
