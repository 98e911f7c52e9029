"""Tests of the correlator on a real socket."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from correlator_bench import WAIT_S, CorrelatorBench
from socket_reader_threads import receiving_threads, wait_for_receiving_threads

KEY = "elastic.profiler_stack_trace_ids"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[CorrelatorBench] = []

    def new(*, at_once: bool = True, **resource: str) -> CorrelatorBench:
        made.append(CorrelatorBench(tmp_path, at_once=at_once, resource=resource))
        return made[-1]

    yield new
    for bench in made:
        bench.end()


def wait_until_deferring(bench: CorrelatorBench) -> None:
    """Wait until the processor is patched."""
    deadline = time.monotonic() + WAIT_S
    while "on_end" not in vars(bench.processor):
        assert time.monotonic() < deadline
        time.sleep(0)


def test_stacks_of_a_transaction_are_on_it_when_it_is_exported(make: Any) -> None:
    bench = make()
    bench.register()
    span = bench.run_span("root", b"a" * 16, b"b" * 16, b"a" * 16)
    assert sorted(span.attributes[KEY]) == ["YWFhYWFhYWFhYWFhYWFhYQ"] * 2 + ["YmJiYmJiYmJiYmJiYmJiYg"]


def test_in_auto_nothing_waits_until_a_profiler_has_registered(make: Any) -> None:
    bench = make(at_once=False)
    assert "on_end" not in vars(bench.processor)
    bench.run_span("before")
    bench.register()
    wait_until_deferring(bench)
    span = bench.run_span("after", b"a" * 16)
    assert span.attributes[KEY] == ("YWFhYWFhYWFhYWFhYWFhYQ",)


def test_in_auto_the_first_report_counts_as_a_registration_and_is_not_lost(make: Any) -> None:
    bench = make(at_once=False)
    span = bench.tracer.start_span("already running")
    bench.report_stack(span)
    wait_until_deferring(bench)
    span.end()
    bench.provider.force_flush()
    (exported,) = bench.exporter.get_finished_spans()
    assert exported.attributes[KEY] == ("c3Nzc3Nzc3Nzc3Nzc3Nzcw",)


def test_what_cannot_be_understood_is_counted_and_the_rest_goes_on(make: Any) -> None:
    bench = make()
    bench.register()
    for datagram in (b"", b"\x01", struct.pack("=HH", 1, 1) + b"x" * 41, struct.pack("=HHI", 2, 2, 1) + b"\x09\0\0\0a"):
        bench.sending.send(datagram)
    for number in range(3, 6):
        bench.sending.send(struct.pack("=HH", number, 1) + b"something new")
    bench.sending.send(struct.pack("=HH", 1, 1) + b"x" * 65_536)
    span = bench.run_span("root", b"a" * 16)
    assert span.attributes[KEY] == ("YWFhYWFhYWFhYWFhYWFhYQ",)
    counts = bench.correlator.counts()
    assert (counts.malformed, counts.unknown, counts.too_long) == (4, 3, 1)
    assert (counts.matched, counts.unmatched) == (1, 0)
    assert counts.received == 10


def test_registered_host_id_is_on_later_spans_and_resources(make: Any) -> None:
    bench = make(**{"service.name": "shop"})
    bench.register(0, b"i-1")
    span = bench.run_span()
    assert span.resource.attributes["host.id"] == "i-1"
    assert bench.correlator.resource(bench.provider.resource).attributes["host.id"] == "i-1"
    bench.register(0, b"")  # changes nothing
    assert bench.run_span("next").resource.attributes["host.id"] == "i-1"


def test_children_carry_the_host_too(make: Any) -> None:
    bench = make()
    bench.register(0, b"i-1")
    bench.run_span("first")  # after the registration
    with bench.tracer.start_as_current_span("root"):
        bench.tracer.start_span("child").end()
    assert bench.exporter.next().resource.attributes["host.id"] == "i-1"


def test_a_host_id_of_ones_own_wins_and_a_difference_is_warned_of_once(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(**{"host.id": "own"})
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        for _ in range(2):
            bench.register(0, b"i-1")
            assert bench.run_span().resource.attributes["host.id"] == "own"
    (record,) = caplog.records
    assert "'own'" in record.getMessage()
    assert "'i-1'" in record.getMessage()


def test_another_id_than_the_one_being_sent_is_ignored_with_one_warning(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(**{"service.name": "shop"})
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        bench.register(0, b"i-1")
        assert bench.run_span().resource.attributes["host.id"] == "i-1"
        for _ in range(2):
            bench.register(0, b"i-2")
            assert bench.run_span().resource.attributes["host.id"] == "i-1"
    (record,) = caplog.records
    assert "'i-1'" in record.getMessage()
    assert "'i-2'" in record.getMessage()


def test_a_registration_with_a_long_host_id_is_read_and_the_log_cuts_it(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    host_id = b"i-" + b"0" * 60_000
    with caplog.at_level(logging.INFO, "splunk_profiler"):
        bench.register(0, host_id)
        assert bench.run_span().resource.attributes["host.id"] == host_id.decode()
    assert "host.id i-000" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 400


def test_a_message_that_is_too_long_gives_one_warning(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    bench = make()
    bench.register(0)  # otherwise each span waits for a profiler that has not named its delay yet
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        for _ in range(3):
            bench.sending.send(bytes(65_537))
            bench.run_span()
    assert bench.correlator.counts().too_long == 3
    (record,) = caplog.records
    assert "more than 65,536 bytes" in record.getMessage()


def test_an_absurd_delay_is_cut_and_logged(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    bench = make()
    with caplog.at_level(logging.INFO, "splunk_profiler"):
        bench.register(2**32 - 1)
        span = bench.tracer.start_span("root")
        span.end()
        bench.provider.force_flush()
    assert [span.name for span in bench.exporter.get_finished_spans()] == ["root"]
    assert "4294967295 ms" in caplog.text
    assert "wait 60020 ms" in caplog.text


def test_a_shorter_delay_lets_those_go_that_already_wait(make: Any) -> None:
    bench = make()
    bench.register(60_000)
    bench.provider.force_flush()
    span = bench.tracer.start_span("root")
    span.end()
    bench.register(0)
    assert bench.exporter.next().name == "root"


def test_messages_that_came_before_a_flush_are_counted_by_it(make: Any) -> None:
    bench = make()
    bench.register(60_000)
    for number in range(200):
        span = bench.tracer.start_span(str(number))
        span.end()
        bench.report_stack(span, count=3)
        bench.provider.force_flush()
        (exported,) = bench.exporter.get_finished_spans()
        assert len(exported.attributes[KEY]) == 3
        bench.exporter.clear()


def test_a_stop_ends_its_threads_and_gives_the_processors_back(make: Any) -> None:
    bench = make()
    (thread,) = (one for one in threading.enumerate() if one.name == "splunk-profiler-correlator")
    wait_for_receiving_threads(1)
    bench.tracer.start_span("waits").end()
    bench.correlator.stop(1)
    thread.join(60)
    wait_for_receiving_threads(0)
    assert bench.exporter.next().name == "waits"
    assert not {"on_start", "on_end", "force_flush", "shutdown"} & vars(bench.processor).keys()


def test_in_auto_the_second_thread_comes_with_the_first_message(make: Any) -> None:
    bench = make(at_once=False)
    bench.run_span("before")
    assert not receiving_threads()
    bench.register()
    wait_until_deferring(bench)
    wait_for_receiving_threads(1)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_socket_that_the_application_closes_is_reported(make: Any, at_once: bool) -> None:
    bench = make(at_once=at_once)
    bench.receiving.shutdown(socket.SHUT_RDWR)
    bench.correlator.look()
    assert bench.lost.wait(WAIT_S)


def test_another_file_under_the_sockets_number_is_never_read(make: Any) -> None:
    bench = make()
    number = bench.receiving.fileno()
    theirs, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept = os.dup(number)
    os.dup2(theirs.fileno(), number)  # as an application that closes descriptors and reuses the number
    other.send(b"for the application")
    bench.register()  # wakes the reader, which still waits on the old socket
    assert bench.lost.wait(WAIT_S)
    assert theirs.recv(100, socket.MSG_DONTWAIT) == b"for the application"
    os.dup2(kept, number)
    os.close(kept)
    theirs.close()
    other.close()
